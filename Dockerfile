# An image with the program alone: docker build -t spillway .
#   docker run --rm -v "$PWD:/work" spillway train --config CONFIG --data FILE --nvme-path .
# Docker's default profile forbids io_uring; --security-opt seccomp=unconfined, or a profile that allows io_uring_setup,
# io_uring_enter and io_uring_register, is needed for tiers on NVMe. The mounted folder has to lie on a drive: the
# container's own file system takes no direct I/O on some hosts.
FROM debian:12-slim AS build
WORKDIR /source
# Apart, so that a change of the source does not install the packages again.
COPY scripts/install_dependencies.sh scripts/
RUN scripts/install_dependencies.sh
COPY . .
RUN scripts/build.sh release spillway && cpack --config build/release/CPackConfig.cmake -B /packages

FROM debian:12-slim
COPY --from=build /packages/spillway_*.deb /tmp/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /tmp/spillway_*.deb \
    && rm -rf /var/lib/apt/lists/* /tmp/spillway_*.deb
WORKDIR /work
ENTRYPOINT ["spillway"]
CMD ["--help"]
