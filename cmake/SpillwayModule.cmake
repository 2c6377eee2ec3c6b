# spillway_module(NAME SOURCES file... HEADERS file... [PUBLIC lib...] [PRIVATE lib...] [HEADERS_ONLY lib...]
#                 [ALONE file...])
# Defines the static library spillway_NAME with the alias spillway::NAME, and installs it as the package's component
# NAME. HEADERS are the public ones and all that they include: what is not named there is not installed. HEADERS_ONLY
# are private libraries that leave nothing to link. ALONE names sources that the sanitizers' presets, which compile
# several sources as one, leave by themselves, because a name of theirs is another file's too. Nothing but the language level, <spillway/...> and the libraries
# to link reaches a project that uses it.
function(spillway_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE;HEADERS_ONLY;ALONE" ${ARGN})
  set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(spillway_${name} STATIC ${ARG_SOURCES})
  add_library(spillway::${name} ALIAS spillway_${name})
  target_compile_features(spillway_${name} PUBLIC cxx_std_20)
  set_target_properties(spillway_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  # g++ fuses a*b+c by default; results must not depend on where it chooses to (D9).
  target_compile_options(spillway_${name} PRIVATE -ffp-contract=off)
  target_link_libraries(spillway_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  foreach(library IN LISTS ARG_HEADERS_ONLY)
    target_include_directories(spillway_${name} SYSTEM PRIVATE
                               $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()

  # The build tree has the installed tree's face too, made of links, so that <spillway/...> is the same for a project
  # that adds this one as a sub-directory, and the source tree itself is on nobody's path.
  target_include_directories(spillway_${name} SYSTEM INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(header IN LISTS ARG_HEADERS)
    cmake_path(GET header PARENT_PATH below)
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include/spillway/${folder}/${below}")
    file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/${header}"
         "${PROJECT_BINARY_DIR}/include/spillway/${folder}/${header}" SYMBOLIC)
    if(SPILLWAY_INSTALL)
      install(FILES ${header} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/spillway/${folder}/${below}" COMPONENT dev)
    endif()
  endforeach()

  if(SPILLWAY_INSTALL)
    target_include_directories(spillway_${name} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    install(TARGETS spillway_${name} EXPORT spillway_${name} ARCHIVE COMPONENT dev)
    install(EXPORT spillway_${name} FILE spillway-${name}.cmake NAMESPACE spillway::
            DESTINATION "${SPILLWAY_INSTALL_CMAKEDIR}" COMPONENT dev)
    set_property(GLOBAL APPEND PROPERTY SPILLWAY_COMPONENTS ${name})
    set_property(GLOBAL APPEND_STRING PROPERTY SPILLWAY_NEEDS
                 "set(_spillway_${name}_needs ${ARG_PUBLIC} ${ARG_PRIVATE})\n")
  endif()
endfunction()

# spillway_test(FOLDER SOURCES file... LIBRARIES lib... [LABELS label...] [UNLABELLED pattern...] [ALONE file...])
# One GoogleTest program for each folder of the tree; every TEST in it is a test of ctest. LABELS say under which
# sanitizers its tests run as well: memory, threads. Those that match one of the patterns of UNLABELLED ("Tuner.*") do
# not: their time would not be worth it. ALONE as above.
function(spillway_test folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LABELS;UNLABELLED;ALONE" ${ARGN})
  set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_executable(${folder}_tests ${ARG_SOURCES})
  target_compile_features(${folder}_tests PRIVATE cxx_std_20)
  target_compile_options(${folder}_tests PRIVATE -ffp-contract=off)
  target_link_libraries(${folder}_tests PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gtest_main)
  # CMake 3.25 loses all but the first label of a list here; ctest -L takes expressions, so one joined label serves.
  string(JOIN "," labels ${folder} ${ARG_LABELS})
  string(JOIN ":" unlabelled ${ARG_UNLABELLED})
  gtest_discover_tests(${folder}_tests TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60
                       TEST_FILTER "*-${unlabelled}" PROPERTIES LABELS "${labels}" TIMEOUT 300)
  if(unlabelled)
    gtest_discover_tests(${folder}_tests TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60
                         TEST_FILTER "${unlabelled}" PROPERTIES LABELS ${folder} TIMEOUT 300)
  endif()
endfunction()
