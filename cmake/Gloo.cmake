# The targets gloo_rs::gloo, for programs written for Gloo, and if asked for `gloo`, as Gloo's own CMake project names it.

# The version of Gloo whose API the headers have, as include/gloo/config.h says.
set(gloo_version_major 0)
set(gloo_version_minor 5)
set(gloo_version_patch 0)
set(gloo_version "${gloo_version_major}.${gloo_version_minor}.${gloo_version_patch}")
set(gloo_headers "${PROJECT_SOURCE_DIR}/include")
# What gloo/config.h must know of this build. Also installed.
set(gloo_rs_features_h "${PROJECT_BINARY_DIR}/gloo_include/gloo_rs_features.h")
set(feature_macros "")
foreach(pair redis:GLOO_USE_REDIS tls:GLOO_HAVE_TRANSPORT_TCP_TLS ibverbs:GLOO_HAVE_TRANSPORT_IBVERBS)
  string(REGEX MATCH "^(.*):(.*)$" pair "${pair}")
  if(CMAKE_MATCH_1 IN_LIST gloo_rs_features)
    string(APPEND feature_macros "#define ${CMAKE_MATCH_2} 1\n")
  else()
    string(APPEND feature_macros "#define ${CMAKE_MATCH_2} 0\n")
  endif()
endforeach()
file(GENERATE OUTPUT "${gloo_rs_features_h}"
     CONTENT "/* The parts that this build of gloo_rs has. gloo/config.h reads it. */\n#pragma once\n\n${feature_macros}")

if(GLOO_STATIC_OR_SHARED STREQUAL STATIC OR (GLOO_STATIC_OR_SHARED STREQUAL "" AND NOT BUILD_SHARED_LIBS))
  set(gloo_links gloo_rs::static)
else()
  set(gloo_links gloo_rs::gloo_rs)
endif()
find_package(Threads REQUIRED)

add_library(gloo_rs::gloo INTERFACE IMPORTED GLOBAL)
target_compile_features(gloo_rs::gloo INTERFACE cxx_std_17)
target_include_directories(gloo_rs::gloo SYSTEM INTERFACE "${PROJECT_BINARY_DIR}/gloo_include" "${gloo_headers}")
target_link_libraries(gloo_rs::gloo INTERFACE ${gloo_links} Threads::Threads)
if(USE_MPI)
  # For gloo/mpi/context.h: the headers call the project's own MPI, the library calls none.
  find_package(MPI REQUIRED COMPONENTS C)
  target_compile_definitions(gloo_rs::gloo INTERFACE GLOO_USE_MPI=1)
  target_link_libraries(gloo_rs::gloo INTERFACE MPI::MPI_C)
endif()

if(GLOO_RS_TARGET_GLOO)
  # A library of its own, not an alias: projects give Gloo's target private compile definitions and options, and install it.
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/gloo.c" CONTENT "typedef int gloo_is_headers_over_gloo_rs;\n")
  set_source_files_properties("${PROJECT_BINARY_DIR}/gloo.c" PROPERTIES GENERATED TRUE)
  add_library(gloo STATIC "${PROJECT_BINARY_DIR}/gloo.c")
  set_target_properties(gloo PROPERTIES ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/gloo$<0:>")
  target_link_libraries(gloo PUBLIC gloo_rs::gloo)
  # A project may export a library that links it. Only an export set tells CMake by which name others find it then, which is that of
  # the installed package. The set itself is not installed: the package defines that target by other means.
  set_target_properties(gloo PROPERTIES EXPORT_NAME gloo)
  install(TARGETS gloo EXPORT gloo_rs_name_of_gloo ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT gloo_rs_never EXCLUDE_FROM_ALL)
  install(EXPORT gloo_rs_name_of_gloo NAMESPACE gloo_rs:: DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT gloo_rs_never EXCLUDE_FROM_ALL)
endif()
