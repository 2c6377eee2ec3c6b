#include "../../core/communicator.h"

#include "../../core/host_device.h"

#include <cstring>
#include <stdexcept>

#include <gtest/gtest.h>

namespace spillway {
namespace {

class SingleRank : public testing::Test {
 protected:
  HostDevice device_{HostDeviceOptions{}};
  Stream& stream_ = device_.stream(Lane::communicate);
  SingleRankCommunicator communicator_;
  Memory from_ = device_.allocate("from", 64), to_ = device_.allocate("to", 64);
};

TEST_F(SingleRank, IsRankZeroOfOne) {
  EXPECT_EQ(communicator_.rank(), 0);
  EXPECT_EQ(communicator_.world(), 1);
  communicator_.barrier();
}

TEST_F(SingleRank, CollectivesAreCopiesInTheStreamsOrder) {
  stream_.call("fill", [&] { std::memset(from_.data(), 1, 64); });
  communicator_.all_gather(stream_, to_.data(), from_.data(), 32);
  stream_.call("fill", [&] { std::memset(from_.data(), 2, 64); });
  communicator_.all_to_all(stream_, to_.data() + 32, from_.data(), 16);
  communicator_.broadcast(stream_, to_.data(), 64, 0);
  stream_.synchronize();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(std::to_integer<int>(to_.data()[i]), i < 32 ? 1 : i < 48 ? 2 : 0) << i;
}

TEST_F(SingleRank, InPlaceNothingMoves) {
  std::memset(from_.data(), 3, 64);
  communicator_.all_gather(stream_, from_.data(), from_.data(), 64);
  communicator_.all_to_all(stream_, from_.data(), from_.data(), 64);
  stream_.synchronize();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(std::to_integer<int>(from_.data()[i]), 3);
}

TEST_F(SingleRank, ARootOutsideTheWorldIsMisuse) {
  EXPECT_THROW(communicator_.broadcast(stream_, to_.data(), 64, 1), std::logic_error);
}

}  // namespace
}  // namespace spillway
