#pragma once
// For formulas that the host and a device share.
#if defined(__CUDACC__)
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif

/// For those that the vectorised files use too: never a function of its own, since the linker could keep the
/// copy that was compiled for a wider instruction set.
#define SPILLWAY_INLINE_FORMULA SPILLWAY_HOST_DEVICE [[gnu::always_inline]] constexpr
