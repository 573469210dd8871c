#pragma once

#include <string>
#include <vector>

#include "fsdp/comm/secret/job_secret.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// Lets the members of a group that was just connected prove the secret of the job to each other over its own links,
// before anything else travels there: each sends a fresh nonce to all, and then a proof over the nonces of all, its own
// place and `group`. So no proof of another group, place or job can be played again. `ranks` are the group's members,
// of which `ranks[place]` is this one. Throws Error(kCommunication) that names the rank whose link does not prove it; a
// link that stays silent ends with the transport's deadline. COLLECTIVE over the group. Two small gathers.
//
// What it cannot do: Gloo's links are plain TCP. Who stands on the path between two hosts and passes the proofs on can
// read and change what follows.
void prove_links(Transport& transport, const JobSecret& secret, const std::string& group, const std::vector<int>& ranks,
                 int place);

}  // namespace fsdp::comm
