#pragma once
// The ways in which something can go wrong (docs/error-policy.md).

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace muster {

// Exit codes of every Muster program. A worker killed by signal N counts as 128 + N.
enum ExitCode : int {
  kExitOk = 0,
  kExitInternal = 1,  // a programmer's error (CheckError) or an unknown exception
  kExitInput = 2,     // the user's input was refused (InputError)
  kExitPeer = 3,      // another rank failed, vanished or timed out (PeerError)
  kExitDiverged = 4,  // training broke down: gradients stayed non-finite (DivergedError)
  kExitInterrupted = 130,
};

// The user's input is refused. what() is one line: where (file:line or key), found, wanted, what to do.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A peer is broken, gone or late. The communicator or rendezvous that threw it can no longer be used.
class PeerError : public std::runtime_error {
 public:
  struct Context {
    int rank = -1;              // the peer at fault, -1 where it is not known
    std::string operation;      // "all_reduce", "exchange", ...
    long long sequence = -1;    // number of the operation on its communicator, from 0
    std::string cause;          // "no answer within 30 s", "aborted: ..."
  };
  explicit PeerError(Context context)
      : std::runtime_error(fmt::format("{} #{}: {}{}", context.operation, context.sequence,
                                       context.rank >= 0 ? fmt::format("rank {}: ", context.rank) : "", context.cause)),
        context_(std::move(context)) {}
  const Context& context() const { return context_; }

 private:
  Context context_;
};

// The numbers of a run broke down. All ranks decide it alike. what() is one line: step, what was found, what to try.
class DivergedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken invariant: our own mistake.
class CheckError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
template <typename A, typename B>
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const A& a, const B& b) {
  throw CheckError(fmt::format("{}:{}: check failed: {} (left {}, right {})", file, line, expression, a, b));
}
}  // namespace detail
}  // namespace muster

#define MUSTER_CHECK_OP(a, op, b)                                                                      \
  do {                                                                                                 \
    const auto& muster_a = (a);                                                                        \
    const auto& muster_b = (b);                                                                        \
    if (!(muster_a op muster_b))                                                                       \
      ::muster::detail::check_failed(#a " " #op " " #b, __FILE__, __LINE__, muster_a, muster_b);       \
  } while (false)
#define MUSTER_CHECK_EQ(a, b) MUSTER_CHECK_OP(a, ==, b)
#define MUSTER_CHECK_LE(a, b) MUSTER_CHECK_OP(a, <=, b)
#define MUSTER_CHECK_LT(a, b) MUSTER_CHECK_OP(a, <, b)
#define MUSTER_CHECK(condition)                                                                        \
  do {                                                                                                 \
    if (!(condition))                                                                                  \
      throw ::muster::CheckError(fmt::format("{}:{}: check failed: {}", __FILE__, __LINE__, #condition)); \
  } while (false)
