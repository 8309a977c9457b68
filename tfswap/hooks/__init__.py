"""Every use of private interfaces of TensorFlow and Keras."""
