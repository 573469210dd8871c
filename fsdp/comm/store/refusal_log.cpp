#include "fsdp/comm/store/refusal_log.h"

namespace fsdp::comm {
namespace {

const char* describe_refusal(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kSilent:
      return "it did not say who it is";
    case RefusalReason::kStranger:
      return "it does not speak as a rank of this build does";
    case RefusalReason::kSecretMissing:
      return "it was started without the secret of the job. If it is a rank, start it with the FSDP_JOB_SECRET of the "
             "others";
    case RefusalReason::kSecretUnknown:
      return "it was started with a secret, and this job has none. If it is a rank, start all with the same "
             "FSDP_JOB_SECRET";
    case RefusalReason::kSecretDiffers:
      return "it does not know the secret of the job. If it is a rank, start it with the FSDP_JOB_SECRET of the others";
    case RefusalReason::kCrowd:
      return "too many wait at a time without having said who they are, and it had waited longest";
    case RefusalReason::kForged:
      return "it was let in, and then sent something that no rank sends";
  }
  return "";
}

}  // namespace

void RefusalLog::tell(RefusalReason reason, const std::string& who, Clock::time_point now) {
  Quiet& quiet = quiet_[static_cast<size_t>(reason)];
  if (now < quiet.until) {
    ++quiet.untold;
    return;
  }
  std::string text = "the store of the job refused a connection from " + who + ": " + describe_refusal(reason) + ".";
  if (quiet.untold > 0) text += " " + std::to_string(quiet.untold) + " more since this was last said.";
  quiet = {now + kPause, 0};
  if (listener_) listener_(text);
}

}  // namespace fsdp::comm
