#include "fuzz_mutator.h"

#include <cctype>

namespace tfswap {

namespace {

const std::vector<std::string>& SectionCandidates() {
  static const auto* numbers = new std::vector<std::string>{"0",
                                                            "-1",
                                                            "1",
                                                            "2",
                                                            "255",
                                                            "4095",
                                                            "4096",
                                                            "2147483647",
                                                            "4294967295",
                                                            "1e308",
                                                            "0.5",
                                                            "1024",
                                                            "1125899906842624",
                                                            "-2",
                                                            "1e400",
                                                            "NaN",
                                                            "true",
                                                            "null",
                                                            "9223372036854775807",
                                                            "1e18",
                                                            "1e19",
                                                            "[]",
                                                            "{}",
                                                            "\"text\""};
  return *numbers;
}

const std::vector<std::string>& Texts() {
  static const auto* texts = new std::vector<std::string>{
      "",          "^",       ":",         "a:-1",       "^a",      "a:4294967295",
      "host",      "file",    "zvc",       "lz4",        "bfp",     "compressed",
      "bootstrap", "\\ud800", "\\u0000",   "/again/0",   "tfswap/", "tfswap/in/a_0/0",
      "tensor",    "gates",   "consumers", "recomputes", "after",   "a:18446744073709551615"};
  return *texts;
}

const std::vector<std::string>& Endings() {
  static const auto* endings = new std::vector<std::string>{
      ":0", ":1", ":7", ":4294967295", ":4294967294", "/again/0", "/again/1", ":2147483648"};
  return *endings;
}

// The parts of a text: "strings", numbers, and bracketed parts.
struct Parts {
  std::vector<std::pair<size_t, size_t>> texts, numbers, groups;
};

Parts PartsOf(const std::string& text) {
  Parts parts;
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t begin = i + 1;
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
      if (i < text.size()) parts.texts.emplace_back(begin, i - begin);
    } else if (c == '[' || c == '{') {
      open.push_back(i);
    } else if ((c == ']' || c == '}') && !open.empty()) {
      parts.groups.emplace_back(open.back(), i + 1 - open.back());
      open.pop_back();
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      const size_t begin = i;
      while (i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0) ++i;
      parts.numbers.emplace_back(begin, i + 1 - begin);
    } else if (c == '\n') {
      const size_t end = text.find('\n', i + 1);
      if (end != std::string::npos) parts.groups.emplace_back(i, end - i);
    }
  }
  return parts;
}

}  // namespace

FuzzMutator::FuzzMutator(std::vector<std::string> names, uint64_t seed)
    : dice_(seed), names_(std::move(names)) {}

std::string FuzzMutator::Changed(const std::vector<std::string>& corpus) {
  std::string text = Any(corpus);
  for (size_t times = 1 + Below(4); times > 0; --times) {
    if (Below(10) == 0) {
      ChangeBytes(&text);
    } else {
      ChangeText(&text);
    }
  }
  return text;
}

std::string FuzzMutator::Name() {
  const size_t kind = Below(6);
  if (kind == 0) return Any(Texts());
  if (kind <= 2) return Any(names_) + Any(Endings());
  return Any(names_);
}

void FuzzMutator::ChangeText(std::string* text) {
  const Parts parts = PartsOf(*text);
  const size_t kind = Below(8);
  if (kind <= 2 && !parts.texts.empty()) {
    const auto [begin, length] = parts.texts[Below(parts.texts.size())];
    text->replace(begin, length, Name());
  } else if (kind == 3 && !parts.numbers.empty()) {
    const auto [begin, length] = parts.numbers[Below(parts.numbers.size())];
    text->replace(begin, length, Any(SectionCandidates()));
  } else if (!parts.groups.empty()) {
    const auto [begin, length] = parts.groups[Below(parts.groups.size())];
    const auto [other, other_length] = parts.groups[Below(parts.groups.size())];
    const std::string group = text->substr(begin, length);
    if (kind == 4) {
      text->erase(begin, length);
    } else if (kind == 5) {
      const bool line = group.front() == '\n';
      text->insert(begin, line ? group : group + ", ");
    } else if (kind == 6) {
      text->replace(begin, length, text->substr(other, other_length));
    } else if (group.size() > 2) {
      text->insert(begin + 1, "\"" + Name() + "\", ");
    }
  }
}

void FuzzMutator::ChangeBytes(std::string* text) {
  const size_t where = Below(text->size() + 1);
  const size_t kind = Below(3);
  if (kind == 0) text->insert(where, 1, static_cast<char>(dice_()));
  if (kind == 1) text->erase(where, 1 + Below(8));
  if (kind == 2 && where < text->size()) (*text)[where] = static_cast<char>(dice_());
}

}  // namespace tfswap
