#pragma once

#include <exception>
#include <functional>
#include <string>

#include "fsdp/mesh/mesh.h"

namespace fsdp {

// Runs `action` on this rank and waits for the others. If it throws on any rank, every rank throws the error of the
// lowest such rank; errors of the folder io become Errors of the same kind. COLLECTIVE over the world. An
// Error(kCommunication) goes out at once: the other ranks get one of their own.
void run_on_every_rank(const World& world, const std::function<void()>& action);

// What LibTorch or a program's own code says is wrong, without the backtrace: one line.
std::string one_line(const std::exception& error);

}  // namespace fsdp
