// Where the secret of a job comes from, and what it proves.
#include "fsdp/comm/secret/job_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <set>

#include "fsdp/base/error.h"
#include "fsdp/comm/rendezvous/secret_source.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::comm::job_secret_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kText = "0123456789abcdef";

// Values of Python's hmac and hashlib over purpose and parts, each behind its length in 8 bytes, little end first.
TEST(JobSecret, ProvesByHmacSha256) {
  EXPECT_EQ(to_hex(JobSecret(kText).prove("store", {"a", "bc"})),
            "f9d42d3323a8ec17bd8f775b3628af2cc5ce1e9ed870e654235cc10d2d6bf6f3");
  EXPECT_EQ(to_hex(JobSecret().prove("store", {})), "74000c9240638231f8d3a9503dfec4c2902792a0744a7cd012f1d76a118b616c");
  EXPECT_EQ(to_hex(JobSecret(std::string(100, 'k')).prove("p", {std::string(1000, 'x')})),
            "551eff64fa7e7e5799b3752d7d99d617e824b1d3dca0410d10165a23b64db7e0");
}

TEST(JobSecret, OneProofIsForOnePurposeAndItsParts) {
  const JobSecret secret(kText);
  std::set<std::string> proofs;
  for (const Proof& proof :
       {secret.prove("a", {"bc"}), secret.prove("ab", {"c"}), secret.prove("a", {"b", "c"}), secret.prove("a", {}),
        secret.prove("a", {""}), secret.prove("a", {"bc", ""}), JobSecret("another secret!!").prove("a", {"bc"})}) {
    proofs.insert(to_hex(proof));
  }
  EXPECT_EQ(proofs.size(), 7U);
  EXPECT_TRUE(are_equal(secret.prove("a", {"bc"}), JobSecret(kText).prove("a", {"bc"})));
  EXPECT_FALSE(are_equal(secret.prove("a", {"bc"}), secret.prove("a", {"bd"})));
}

TEST(JobSecret, NewOnesDiffer) {
  EXPECT_NE(JobSecret::make_text(), JobSecret::make_text());
  EXPECT_EQ(JobSecret::make_text().size(), 64U);
}

JobSecret read(const std::map<std::string, std::string>& variables) {
  return read_job_secret([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const std::map<std::string, std::string>& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "no error";
}

std::string proof_of(const JobSecret& secret) { return to_hex(secret.prove("test", {})); }

TEST(SecretSource, NoneWhereNothingIsSet) {
  EXPECT_FALSE(read({}).is_given());
  EXPECT_FALSE(read({{"FSDP_JOB_SECRET", ""}, {"FSDP_JOB_SECRET_FILE", ""}}).is_given());
}

TEST(SecretSource, VariableAndFileHoldTheSame) {
  const io::TemporaryFolder folder;
  const std::string path = folder / "secret";
  io::write_text(path, std::string(kText) + "\n");
  chmod(path.c_str(), 0600);
  EXPECT_EQ(proof_of(read({{"FSDP_JOB_SECRET", kText}})), proof_of(JobSecret(kText)));
  EXPECT_EQ(proof_of(read({{"FSDP_JOB_SECRET_FILE", path}})), proof_of(JobSecret(kText)));
  chmod(path.c_str(), 0400);
  EXPECT_EQ(proof_of(read({{"FSDP_JOB_SECRET_FILE", path}})), proof_of(JobSecret(kText)));
  EXPECT_THAT(refusal({{"FSDP_JOB_SECRET", kText}, {"FSDP_JOB_SECRET_FILE", path}}), HasSubstr("both set"));
}

TEST(SecretSource, WhatOthersMayReadIsRefused) {
  const io::TemporaryFolder folder;
  const std::string path = folder / "secret";
  io::write_text(path, kText);
  for (const mode_t mode : {0640, 0604, 0644, 0620, 0602, 0610}) {
    chmod(path.c_str(), mode);
    EXPECT_THAT(refusal({{"FSDP_JOB_SECRET_FILE", path}}), AllOf(HasSubstr("other users"), HasSubstr("chmod 600")))
        << std::oct << mode;
  }
}

TEST(SecretSource, MistakesAreNamedWithoutTheSecret) {
  EXPECT_THAT(refusal({{"FSDP_JOB_SECRET", "too-short"}}),
              AllOf(HasSubstr("FSDP_JOB_SECRET: got a secret of 9 bytes, expected 16 to 4096"),
                    HasSubstr("openssl rand"), Not(HasSubstr("too-short"))));
  EXPECT_THAT(refusal({{"FSDP_JOB_SECRET", std::string(5000, 'x')}}), HasSubstr("5000 bytes"));
  const io::TemporaryFolder folder;
  const std::string path = folder / "secret";
  EXPECT_THAT(refusal({{"FSDP_JOB_SECRET_FILE", path}}), HasSubstr("No such file"));
  EXPECT_THAT(refusal({{"FSDP_JOB_SECRET_FILE", folder.path()}}), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // nobody ever writes to it
  EXPECT_THAT(refusal({{"FSDP_JOB_SECRET_FILE", path}}), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace fsdp::comm::job_secret_test
