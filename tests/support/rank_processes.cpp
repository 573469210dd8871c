#include "tests/support/rank_processes.h"

#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/rendezvous/store.h"

namespace fsdp::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The child of a test that is killed goes with it.
pid_t fork_child() {
  std::fflush(nullptr);  // else both write what is buffered
  const pid_t process = fork();
  if (process < 0) throw std::runtime_error("no process");
  if (process == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return process;
}

[[noreturn]] void host_store(int pipe_end, const comm::JobSecret& secret) {
  comm::StoreServerOptions options;
  options.secret = secret;
  const comm::StoreServer server(std::move(options));
  const uint16_t port = server.port();
  if (write(pipe_end, &port, sizeof(port)) != sizeof(port)) _exit(1);
  while (true) pause();
}

RankResult run(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const comm::ConnectOptions& options,
               const RankProcesses::Body& body) {
  RankResult result;
  auto begin = Clock::now();
  try {
    World world = comm::connect(store, rank, size, options);
    begin = Clock::now();
    try {
      result.text = body(world);
    } catch (const std::exception& error) {
      result.text = error.what();
    }
    result.seconds = seconds_since(begin);
    begin = Clock::now();
    world = World();
    result.goodbye = seconds_since(begin);
  } catch (const std::exception& error) {
    result.text = error.what();
    result.seconds = seconds_since(begin);
  }
  return result;
}

}  // namespace

comm::ConnectOptions options_for(const std::string& transport, int rank, int size) {
  comm::ConnectOptions options;
  if (transport == "shm") options.transport = TransportKind::kShm;
  if (transport == "two-level") {
    options.transport = TransportKind::kAuto;
    options.host_label = 2 * rank < size ? "first" : "second";
  }
  return options;
}

RankProcesses::RankProcesses(comm::StoreHost store_host, const comm::JobSecret& secret) : store_host_(store_host) {
  if (store_host_ == comm::StoreHost::kRankZero) {
    port_ = reserved_port_.emplace().number();
    return;
  }
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  store_ = fork_child();
  if (store_ == 0) host_store(ends[1], secret);
  const bool is_read = read(ends[0], &port_, sizeof(port_)) == sizeof(port_);
  close(ends[0]);
  close(ends[1]);
  if (!is_read) throw std::runtime_error("no store");
}

RankProcesses::~RankProcesses() {
  std::vector<pid_t> all;
  for (const auto& [rank, process] : ranks_) all.push_back(process);
  if (store_ > 0) all.push_back(store_);
  for (const pid_t process : all) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
}

void RankProcesses::start(int rank, int size, comm::ConnectOptions options, const Body& body) {
  start(rank, [&] {
    comm::LaunchEnvironment env;
    env.launcher = "test";
    env.rank = rank;
    env.size = size;
    env.store_port = port_;
    env.hosted_by = store_host_;
    options.store_host = store_host_;
    return run(comm::open_store(env, std::chrono::seconds(20), options.secret), rank, size, options, body);
  });
}

void RankProcesses::start(int rank, const std::function<RankResult()>& body) {
  const pid_t process = fork_child();
  if (process != 0) {
    ranks_[rank] = process;
    return;
  }
  at::set_num_threads(1);
  RankResult result;
  try {
    result = body();
  } catch (const std::exception& error) {
    result.text = error.what();
  }
  std::ofstream file(folder_ / ("result-" + std::to_string(rank)));
  file << result.seconds << ' ' << result.goodbye << ' ' << result.text;
  file.close();
  _exit(0);
}

void RankProcesses::send(int rank, int signal) const { kill(ranks_.at(rank), signal); }

void RankProcesses::send_to_store(int signal) const { kill(store_, signal); }

RankResult RankProcesses::result(int rank, std::chrono::seconds patience) {
  const auto until = Clock::now() + patience;
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(ranks_.at(rank), &status, WNOHANG)) == 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  RankResult result;
  if (ended == 0) return result;
  ranks_.erase(rank);
  result.ended = WIFEXITED(status);
  std::ifstream file(folder_ / ("result-" + std::to_string(rank)));
  file >> result.seconds >> result.goodbye;
  file.get();
  std::getline(file, result.text, '\0');
  if (WIFSIGNALED(status)) result.text += "ended by signal " + std::to_string(WTERMSIG(status));
  return result;
}

}  // namespace fsdp::testing
