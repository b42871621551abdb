// The part of PyTorch's exceptions that the shim relies on.

#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

// As in PyTorch, the destructor is not exported.
class Error : public std::exception {
 public:
  Error(SourceLocation location, std::string message);
  const char* what() const noexcept override;

 private:
  std::string message_;
  std::shared_ptr<int> alive_;
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10
