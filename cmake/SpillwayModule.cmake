# spillway_module(NAME SOURCES file... [PUBLIC lib...] [PRIVATE lib...])
# Defines the static library spillway_NAME with the alias spillway::NAME. Nothing but the language level and
# the libraries named PUBLIC reaches a project that links it.
function(spillway_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(spillway_${name} STATIC ${ARG_SOURCES})
  add_library(spillway::${name} ALIAS spillway_${name})
  target_compile_features(spillway_${name} PUBLIC cxx_std_20)
  set_target_properties(spillway_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  # g++ fuses a*b+c by default; results must not depend on where it chooses to (D9).
  target_compile_options(spillway_${name} PRIVATE -ffp-contract=off)
  target_link_libraries(spillway_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# spillway_test(FOLDER SOURCES file... LIBRARIES lib... [LABELS label...])
# One GoogleTest program for each folder of the tree; every TEST in it is a test of ctest.
function(spillway_test folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${folder}_tests ${ARG_SOURCES})
  target_compile_features(${folder}_tests PRIVATE cxx_std_20)
  target_compile_options(${folder}_tests PRIVATE -ffp-contract=off)
  target_link_libraries(${folder}_tests PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gtest_main)
  # CMake 3.25 loses all but the first label of a list here; ctest -L takes expressions, so one joined label serves.
  string(JOIN "," labels ${folder} ${ARG_LABELS})
  gtest_discover_tests(${folder}_tests TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${labels}" TIMEOUT 300)
endfunction()
