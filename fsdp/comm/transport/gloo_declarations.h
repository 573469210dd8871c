#pragma once

// What c10d's ProcessGroupGloo.hpp needs to know of Gloo. The LibTorch wheel exports Gloo's symbols but ships none of
// its headers; CMake makes forwarding headers <gloo/...> to this file for gloo_transport.cpp alone.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#define GLOO_STORE_HAS_STORE_V2 1

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

class IStore {
 public:
  virtual ~IStore() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

namespace rendezvous {
class Store : public IStore {
 public:
  virtual ~Store();
  virtual bool has_v2_support() { return false; }
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>&) { throw 1; }
  virtual void multi_set(const std::vector<std::string>&, const std::vector<std::vector<char>>&) {}
  virtual void append(const std::string&, const std::vector<char>&) {}
  virtual int64_t add(const std::string&, int64_t) { return 0; }
};
}  // namespace rendezvous

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport

}  // namespace gloo
