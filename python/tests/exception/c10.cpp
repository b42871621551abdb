// Stands for libc10.so.

#include "c10.h"

#include <utility>

namespace c10 {

Error::Error(SourceLocation, std::string message) : message_(std::move(message)), alive_(std::make_shared<int>(1)) {}

const char* Error::what() const noexcept { return message_.c_str(); }

}  // namespace c10
