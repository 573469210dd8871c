#include "app/doctor/network_checks.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "app/child/child_run.h"
#include "app/doctor/link_speed.h"
#include "train/base/format.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

// Listens at any free port and connects to it, as the store of a job and its ranks do.
Finding check_ports() {
  Finding finding{"ports", "a free one can be listened at and reached"};
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
            caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* place = reinterpret_cast<sockaddr*>(&address);
  const bool works = listener >= 0 && caller >= 0 && bind(listener, place, size) == 0 && listen(listener, 1) == 0 &&
                     getsockname(listener, place, &size) == 0 && connect(caller, place, size) == 0;
  const int reason = errno;
  for (const int descriptor : {listener, caller})
    if (descriptor >= 0) close(descriptor);
  if (works) return finding;
  finding.value = std::string("127.0.0.1 cannot be listened at or reached: ") + std::strerror(reason);
  finding.verdict = Health::kBroken;
  finding.failure = ErrorCode::kCommunication;
  finding.advice = "Several ranks meet by TCP: allow local connections, or train with one rank.";
  return finding;
}

std::vector<std::string> addresses_of(const char* host, std::string& problem) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  std::vector<std::string> addresses;
  if (const int error = getaddrinfo(host, nullptr, &hints, &list); error != 0) {
    problem = gai_strerror(error);
    return addresses;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      addresses.emplace_back(text);
  }
  return addresses;
}

Finding check_host_name() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  std::string problem;
  const std::vector<std::string> addresses = addresses_of(host, problem);
  Finding finding{"host name", host};
  if (addresses.empty()) {
    finding.value += " leads nowhere: " + problem;
    finding.verdict = Health::kSlow;
    finding.advice =
        "One host is fine. For several: add the name to /etc/hosts or the name server, or give MASTER_ADDR "
        "as a number.";
    return finding;
  }
  finding.value += " is " + addresses.front();
  const bool local = std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
    return address.rfind("127.", 0) == 0 || address == "::1";
  });
  if (local) finding.value += ", which other hosts cannot reach: for several hosts give MASTER_ADDR as a number";
  return finding;
}

}  // namespace

Findings check_network() { return {check_ports(), check_host_name()}; }

Finding probe_transport(const std::string& transport) {
  const ScratchFolder scratch;
  const fs::path result = scratch.path() / "speed", log = scratch.path() / "log";
  const int code = run_again({"launch", "--nproc", "2", "--no-prefix", "--", "doctor", "--probe", result.string()},
                             {{"FSDP_TRANSPORT", transport}}, log);
  std::ifstream file(result);
  LinkSpeed speed;
  if (code == 0 && file >> speed.bytes_per_second >> speed.call_us) return judge_link(transport, speed);
  Finding finding{"transport " + transport, "two ranks did not get through: " + last_line(log), Health::kBroken};
  finding.failure = ErrorCode::kCommunication;
  finding.advice = transport == "shm" ? "FSDP_TRANSPORT=gloo does without shared memory, slower."
                                      : "Ranks of one host can share memory instead; several hosts cannot train so.";
  return finding;
}

Finding judge_link(const std::string& transport, const LinkSpeed& speed) {
  Finding finding{"transport " + transport, train::format_text("%.2f GB/s received by each rank, %.0f us a call",
                                                               1e-9 * speed.bytes_per_second, speed.call_us)};
  // A busy machine shows here first: ranks that wait for each other need their cores at the same time.
  const double least = transport == "shm" ? 1e9 : 1e8;
  if (speed.bytes_per_second < least || speed.call_us > 5000) {
    finding.verdict = Health::kSlow;
    finding.advice =
        train::format_text("Expected %.1f GB/s or more and less than 5000 us. Is the machine busy%s?", 1e-9 * least,
                           transport == "shm" ? "" : ", or another interface meant (GLOO_SOCKET_IFNAME)");
  }
  return finding;
}

}  // namespace fsdp::app
