#pragma once
// Real file systems on loop devices, for tests: in a mount namespace and on a thread of their own, so that the
// kernel takes everything down again whatever way a test ends.
#include "../../aio/file_system.h"
#include "scratch.h"

#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

namespace spillway::aio {

struct LoopFileSystem {
  std::string type;        ///< as mount knows it
  std::string make;        ///< the program that makes it, with its flags; the device is appended
  std::int64_t bytes = 0;  ///< of the device
  unsigned sector_bytes = 512;
  std::string options = {};  ///< of mount
};

/// A loop device over a sparse file without a name; it is detached when the last that uses it has closed it.
class LoopDevice {
 public:
  /// On failure error() says why, and nothing else may be called.
  LoopDevice(const std::string& directory, std::int64_t bytes, unsigned sector_bytes) {
    attach(directory, bytes, sector_bytes);
  }

  const std::optional<std::string>& error() const { return error_; }
  const std::string& path() const { return path_; }

 private:
  void attach(const std::string& directory, std::int64_t bytes, unsigned sector_bytes) {
    std::string name = directory + "/image-XXXXXX";
    const Descriptor image(::mkstemp(name.data()));
    if (image.get() < 0) return fail("no image file");
    ::unlink(name.c_str());
    if (::ftruncate(image.get(), bytes) != 0) return fail("no room for the image");
    const Descriptor control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    if (control.get() < 0) return fail("loop devices are not allowed here");
    loop_config config{};
    config.fd = static_cast<std::uint32_t>(image.get());
    config.block_size = sector_bytes;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    // Another process may take the free device that was just named.
    for (int attempt = 0; attempt < 100; ++attempt) {
      const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
      if (number < 0) return fail("no free loop device");
      path_ = "/dev/loop" + std::to_string(number);
      device_.emplace(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
      if (device_->get() >= 0 && ::ioctl(device_->get(), LOOP_CONFIGURE, &config) == 0) return;
      if (errno != EBUSY) break;
    }
    fail("no loop device with sectors of " + std::to_string(sector_bytes) + " bytes");
  }
  void fail(const std::string& what) { error_ = what + ": " + std::strerror(errno); }

  std::optional<std::string> error_;
  std::string path_;
  std::optional<Descriptor> device_;
};

/// Why not, where that is so.
inline std::optional<std::string> mount_here(const LoopFileSystem& what, const std::string& device,
                                             const std::string& mount_point) {
  const std::string command = what.make + " " + device + " >/dev/null 2>&1";
  if (std::system(command.c_str()) != 0) return "this failed: " + what.make;
  // All mounts of this namespace are made private first, else this one would be seen outside.
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(device.c_str(), mount_point.c_str(), what.type.c_str(), 0, what.options.c_str()) != 0) {
    return "cannot mount " + what.type + ": " + std::strerror(errno);
  }
  return std::nullopt;
}

/// Runs `body` with a directory on a new, empty file system, and the device under it, seen by the calling
/// thread of `body` (and those it starts) only. Returns why that can't be done here; `body` has not run then.
/// What it throws is thrown here.
inline std::optional<std::string> on_file_system(
    const ScratchDirectory& scratch, const LoopFileSystem& what,
    const std::function<void(const std::string& directory, const std::string& device)>& body) {
  std::optional<std::string> reason;
  std::exception_ptr thrown;
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0) {
      reason = "mounting is not allowed here";
      return;
    }
    std::string directory = std::filesystem::absolute(scratch.path()).string() + "/mount-XXXXXX";
    if (::mkdtemp(directory.data()) == nullptr) {
      reason = "no directory to mount on";
      return;
    }
    const LoopDevice device(scratch.path(), what.bytes, what.sector_bytes);
    reason = device.error();
    if (!reason) reason = mount_here(what, device.path(), directory);
    if (!reason) {
      try {
        body(directory, device.path());
      } catch (...) {
        thrown = std::current_exception();
      }
      if (::umount2(directory.c_str(), MNT_DETACH) != 0) ADD_FAILURE() << "cannot unmount " << directory;
    }
    ::rmdir(directory.c_str());
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return reason;
}

}  // namespace spillway::aio
