#include "tests/unit/amx/amx_fixture.h"

#include <ucontext.h>

#include "codegen/amx/tiles.h"

namespace xjit {
namespace {

thread_local sigjmp_buf guard;
thread_local volatile bool guarded = false;
thread_local Fault last_fault;

void EndGuardedCall(int number, siginfo_t* info, void* context) {
  if (!guarded) {
    signal(number, SIG_DFL);
    return;
  }
  last_fault = {.signal = number,
                .code = info->si_code,
                .address = reinterpret_cast<uint64_t>(info->si_addr),
                .rip = static_cast<uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP])};
  siglongjmp(guard, 1);
}

std::string Prepare() {
  struct sigaction action = {};
  action.sa_sigaction = EndGuardedCall;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  sigaction(SIGSEGV, &action, nullptr);
  return std::string(Message(PrepareTiles()));
}

template <typename Call>
Fault Guard(Call call) {
  last_fault = {};
  guarded = true;
  if (sigsetjmp(guard, 1) == 0) call();
  guarded = false;
  return last_fault;
}

}  // namespace

const std::string& PrepareTileTests() {
  static const std::string why = Prepare();
  return why;
}

Fault Program::Guarded(const void* a, const void* b, const void* c) const {
  return Guard([&] { (*this)(a, b, c); });
}

Fault GuardedRaise(int signal) {
  return Guard([&] { raise(signal); });
}

}  // namespace xjit
