#include "fsdp/comm/rendezvous/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "fsdp/base/error.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// The error that reading gives; it is always the user's to mend.
std::string refusal(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_EQ(std::string(error.what()).find("[init] "), 0U);
    return error.what();
  }
  return "no error";
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorch = {{"RANK", "3"},           {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29501"}};
const Variables kSlurm = {{"SLURM_STEP_ID", "0"},   {"SLURM_PROCID", "5"},
                          {"SLURM_LOCALID", "1"},   {"SLURM_STEP_NUM_TASKS", "8"},
                          {"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_NODELIST", "node[07-10]"}};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "head"},       {"MASTER_PORT", "29501"}};
const Variables kMpich = {{"PMI_RANK", "1"},        {"PMI_SIZE", "2"},       {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29501"}};

void expect_place(const LaunchEnvironment& env, const std::string& launcher, int rank, int size) {
  EXPECT_EQ(env.launcher, launcher);
  EXPECT_EQ(env.rank, rank);
  EXPECT_EQ(env.size, size);
}

TEST(LaunchEnvironment, AloneWithoutVariables) {
  const LaunchEnvironment env = read({});
  expect_place(env, "alone", 0, 1);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_size, 1);
  expect_place(read({{"RANK", ""}, {"WORLD_SIZE", ""}}), "alone", 0, 1);  // empty counts as unset
}

TEST(LaunchEnvironment, OurLauncher) {
  const LaunchEnvironment env = read(with(kTorch, {{"FSDP_LAUNCH", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  expect_place(env, "fsdp launch", 3, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_size, 2);
  EXPECT_EQ(env.store_host, "head");
  EXPECT_EQ(env.store_port, 29501);
  EXPECT_EQ(env.hosted_by, StoreHost::kLauncher);
}

TEST(LaunchEnvironment, Torchrun) {
  const LaunchEnvironment env = read(with(kTorch, {{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  expect_place(env, "torchrun", 3, 8);
  EXPECT_EQ(env.attempt, "2");
  EXPECT_EQ(env.hosted_by, StoreHost::kRankZero);
  const Variables agent{{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(read(with(kTorch, agent)).hosted_by, StoreHost::kAgent);
}

TEST(LaunchEnvironment, AJobOfOneHostIsKnownAsOne) {
  EXPECT_FALSE(read(kTorch).stays_on_host());
  EXPECT_EQ(read(kTorch).store_host, "head");
  const LaunchEnvironment torch = read(with(kTorch, {{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "8"}}));
  EXPECT_TRUE(torch.stays_on_host());
  EXPECT_EQ(torch.store_host, "127.0.0.1");  // whatever name rank 0's host has
  EXPECT_FALSE(read(kSlurm).stays_on_host());
  const LaunchEnvironment slurm = read(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_TRUE(slurm.stays_on_host());
  EXPECT_EQ(slurm.store_host, "127.0.0.1");
  EXPECT_FALSE(read(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}})).stays_on_host());
  const Variables plain = without(without(kTorch, "LOCAL_RANK"), "LOCAL_WORLD_SIZE");
  EXPECT_FALSE(read(plain).stays_on_host());  // nobody says
  for (const char* name : {"localhost", "127.0.0.1", "127.0.1.1"}) {
    EXPECT_TRUE(read(with(plain, {{"MASTER_ADDR", name}})).stays_on_host()) << name;
  }
  // The store of an agent may be elsewhere.
  const LaunchEnvironment agent = read(with(kTorch, {{"LOCAL_RANK", "3"},
                                                     {"LOCAL_WORLD_SIZE", "8"},
                                                     {"TORCHELASTIC_RUN_ID", "x"},
                                                     {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_TRUE(agent.stays_on_host());
  EXPECT_EQ(agent.store_host, "head");
}

TEST(LaunchEnvironment, PlainVariables) {
  const LaunchEnvironment env = read(without(without(kTorch, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  expect_place(env, "env://", 3, 8);
  EXPECT_FALSE(env.local_rank.has_value());
  EXPECT_FALSE(env.local_size.has_value());
}

TEST(LaunchEnvironment, Slurm) {
  const LaunchEnvironment env = read(kSlurm);
  expect_place(env, "srun", 5, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.store_host, "node07");
  EXPECT_GE(env.store_port, 1024);
  EXPECT_EQ(read(with(kSlurm, {{"SLURM_PROCID", "0"}})).store_port, env.store_port);   // all tasks compute the same
  EXPECT_NE(read(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).store_port, env.store_port);  // two steps do not meet
  EXPECT_EQ(read(with(kSlurm, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "77"}})).store_host, "other");
}

TEST(LaunchEnvironment, SlurmPortsAreLegalForAnyJob) {
  for (const char* job : {"0", "1", "9999", "123456", "2147483647"}) {
    for (const char* step : {"0", "1", "5000", "100000"}) {
      EXPECT_GE(read(with(kSlurm, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})).store_port, 1024)
          << job << ' ' << step;
    }
  }
}

TEST(LaunchEnvironment, ASlurmAllocationWithoutAStepIsAlone) {
  expect_place(read(without(kSlurm, "SLURM_STEP_ID")), "alone", 0, 1);
}

TEST(LaunchEnvironment, OpenMpiAndMpich) {
  const LaunchEnvironment open = read(kOpenMpi);
  expect_place(open, "Open MPI", 2, 4);
  EXPECT_EQ(open.local_size, 2);
  EXPECT_EQ(open.store_port, 29501);
  const LaunchEnvironment mpich = read(kMpich);
  expect_place(mpich, "MPICH", 1, 2);
  EXPECT_EQ(mpich.local_rank, 1);
  expect_place(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), "MPICH", 0, 1);  // one rank needs no address
}

TEST(LaunchEnvironment, TheMoreSpecificLauncherWins) {
  const Variables all = with(with(with(kSlurm, kOpenMpi), kMpich), kTorch);
  EXPECT_EQ(read(all).launcher, "env://");
  EXPECT_EQ(read(with(all, {{"TORCHELASTIC_RUN_ID", "x"}})).launcher, "torchrun");
  EXPECT_EQ(read(with(all, {{"TORCHELASTIC_RUN_ID", "x"}, {"FSDP_LAUNCH", "1"}})).launcher, "fsdp launch");
  EXPECT_EQ(read(with(kSlurm, kOpenMpi)).launcher, "srun");
}

TEST(LaunchEnvironment, NamesTheMissingVariable) {
  const Variables torchrun = with(kTorch, {{"TORCHELASTIC_RUN_ID", "x"}});
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(refusal(without(torchrun, name)), AllOf(HasSubstr(name), HasSubstr("torchrun"), HasSubstr("not set")));
  }
  EXPECT_THAT(refusal(without(kTorch, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(refusal(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")), HasSubstr("OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(refusal(without(kMpich, "PMI_SIZE")), HasSubstr("PMI_SIZE"));
  EXPECT_THAT(refusal(without(kOpenMpi, "MASTER_ADDR")), AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("mpirun -x")));
}

// Half of a job description is a mistake, not a job of one.
TEST(LaunchEnvironment, HalfADescriptionIsRefused) {
  EXPECT_THAT(refusal({{"RANK", "1"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29501"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29501"}}), HasSubstr("RANK"));
}

TEST(LaunchEnvironment, NamesTheMalformedVariable) {
  for (const char* text : {"three", "-1", "1.5", " 2", "2x", "99999999999", "0x1"}) {
    EXPECT_THAT(refusal(with(kTorch, {{"RANK", text}})),
                AllOf(HasSubstr("RANK"), HasSubstr(std::string("'") + text + "'")));
  }
  EXPECT_THAT(refusal(with(kTorch, {{"LOCAL_RANK", "a"}})), HasSubstr("LOCAL_RANK"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_PROCID", "a"}})), HasSubstr("SLURM_PROCID"));
  for (const char* port : {"0", "65536", "70000"}) {
    EXPECT_THAT(refusal(with(kTorch, {{"MASTER_PORT", port}})), AllOf(HasSubstr("MASTER_PORT"), HasSubstr(port)));
  }
}

TEST(LaunchEnvironment, ContradictionsAreRefused) {
  EXPECT_THAT(refusal(with(kTorch, {{"RANK", "8"}})), HasSubstr("rank 8 of 8"));
  EXPECT_THAT(refusal(with(kTorch, {{"WORLD_SIZE", "0"}, {"RANK", "0"}})), HasSubstr("of 0"));
  EXPECT_THAT(refusal(with(kTorch, {{"LOCAL_RANK", "2"}})), HasSubstr("local rank 2 of 2"));
  EXPECT_THAT(refusal(with(kTorch, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("of 9 in a world of 8"));
}

TEST(LaunchEnvironment, RanksThatCountNodesAreRefused) {
  const Variables per_node = with(without(kTorch, "LOCAL_RANK"), {{"NPROC_PER_NODE", "8"}});
  EXPECT_THAT(refusal(per_node), AllOf(HasSubstr("count nodes"), HasSubstr("8 processes")));
  EXPECT_THAT(refusal(with(without(kTorch, "LOCAL_RANK"), {{"PET_NPROC_PER_NODE", "4"}})), HasSubstr("count nodes"));
  EXPECT_EQ(refusal(with(kTorch, {{"NPROC_PER_NODE", "8"}})), "no error");
}

TEST(LaunchEnvironment, FirstSlurmHost) {
  EXPECT_EQ(first_slurm_host("alpha"), "alpha");
  EXPECT_EQ(first_slurm_host("alpha,beta"), "alpha");
  EXPECT_EQ(first_slurm_host("node[07-09,12],x3"), "node07");
  EXPECT_EQ(first_slurm_host("node[7]"), "node7");
  EXPECT_EQ(first_slurm_host("x3,node[07-09]"), "x3");
  EXPECT_EQ(first_slurm_host("node[007,010-12]"), "node007");
  EXPECT_EQ(first_slurm_host("rack[1-2]-ib"), "rack1-ib");
  EXPECT_THROW(first_slurm_host("node[07"), Error);
}

}  // namespace
}  // namespace fsdp::comm
