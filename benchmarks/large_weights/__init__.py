"""Models whose weights exceed the budget: fine-tuned, trained, and used."""
