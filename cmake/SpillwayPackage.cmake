# `cpack` in the build folder makes spillway_*.deb, the program, and libspillway-dev_*.deb, the libraries.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "Spillway")
set(CPACK_PACKAGE_CONTACT "Spillway maintainers <maintainers@spillway.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # it would stand before both packages' own
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME spillway)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "trains models that do not fit in GPU memory
Parameters are on the device only while a layer needs them; the optimizer's
state lives in host memory or on NVMe, and is updated there. Where state lives
changes the speed of a training and never its result.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libspillway-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
# What the static libraries link, and how CMake finds it: Debian's oneDNN asks for OpenCL.
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
    "libfmt-dev, libhwloc-dev, liburing-dev, libxxhash-dev, libdnnl-dev, ocl-icd-opencl-dev, pkg-config")
set(CPACK_DEBIAN_DEV_DESCRIPTION "trains models that do not fit in GPU memory (libraries)
Static libraries, headers and CMake's package files, found by
find_package(spillway): the offload engine, direct I/O, Adam on the CPU.")
include(CPack)
