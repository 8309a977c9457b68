// Strings that the caller frees: Python, through ctypes.

#ifndef TFSWAP_CC_CORE_UTIL_C_TEXT_H_
#define TFSWAP_CC_CORE_UTIL_C_TEXT_H_

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace tfswap {

inline char* Copied(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// A flat JSON object of numbers.
class Numbers {
 public:
  Numbers& Add(const std::string& key, int64_t value) {
    text_ << (first_ ? "{\"" : ", \"") << key << "\": " << value;
    first_ = false;
    return *this;
  }
  std::string Text() const { return text_.str() + "}"; }

 private:
  std::ostringstream text_;
  bool first_ = true;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_C_TEXT_H_
