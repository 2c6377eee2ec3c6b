# What a package has besides the libraries, which spillway_module installs: the program and its papers (component
# runtime), CMake's files and the examples' sources (component dev).
include(CMakePackageConfigHelpers)

get_property(SPILLWAY_COMPONENTS GLOBAL PROPERTY SPILLWAY_COMPONENTS)
get_property(SPILLWAY_NEEDS GLOBAL PROPERTY SPILLWAY_NEEDS)
configure_file("${CMAKE_CURRENT_LIST_DIR}/spillway-config.cmake.in" "${PROJECT_BINARY_DIR}/spillway-config.cmake" @ONLY)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/spillway-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/spillway-config.cmake" "${PROJECT_BINARY_DIR}/spillway-config-version.cmake"
        DESTINATION "${SPILLWAY_INSTALL_CMAKEDIR}" COMPONENT dev)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/" DESTINATION "${CMAKE_INSTALL_DATADIR}/spillway/examples"
        COMPONENT dev FILES_MATCHING PATTERN "*.cpp" PATTERN CMakeLists.txt)

if(SPILLWAY_PROGRAM)
  install(TARGETS spillway RUNTIME COMPONENT runtime)
  # Not below share/doc: a container's base image may leave that out.
  file(GLOB configurations "${PROJECT_SOURCE_DIR}/examples/*.json")
  install(FILES ${configurations} DESTINATION "${CMAKE_INSTALL_DATADIR}/spillway/examples" COMPONENT runtime)
  file(GLOB documents "${PROJECT_SOURCE_DIR}/docs/*.md")
  install(FILES "${PROJECT_SOURCE_DIR}/README.md" ${documents} DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/spillway"
          COMPONENT runtime)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/spillway" RENAME copyright
          COMPONENT runtime)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libspillway-dev" RENAME copyright
        COMPONENT dev)
