#pragma once

#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/secret/job_secret.h"

namespace fsdp::comm {

inline constexpr const char* kSecretVariable = "FSDP_JOB_SECRET";
inline constexpr const char* kSecretFileVariable = "FSDP_JOB_SECRET_FILE";

// The secret of the job that FSDP_JOB_SECRET holds, or the file that FSDP_JOB_SECRET_FILE names; none where neither is
// set. White space at its ends does not count. Reads through `get` and that file only. Throws Error(kUsage), without a
// letter of the secret: both are set; less than 16 or more than 4096 bytes; a file that cannot be read, is no regular
// file, belongs to somebody else than this user or root, or may be read by others.
JobSecret read_job_secret(const GetVariable& get);

// The secret of this process's environment, which is taken out of it: programs that this one starts do not inherit it.
// Later calls return the same. Throws as read_job_secret() does.
JobSecret take_job_secret();

}  // namespace fsdp::comm
