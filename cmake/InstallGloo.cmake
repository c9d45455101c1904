# Installs the headers of Gloo's API below LIBDIR/gloo_rs/gloo, laid out as an installed Gloo: include/gloo, lib/libgloo.so,
# lib/cmake/Gloo. Nobody looks there unasked, so it never takes the place of Gloo itself; CMAKE_PREFIX_PATH, find_package,
# find_library and -I all take it like one.
set(gloo_prefix "${CMAKE_INSTALL_LIBDIR}/gloo_rs/gloo")

configure_file("${PROJECT_SOURCE_DIR}/cmake/GlooConfig.cmake.in" "${PROJECT_BINARY_DIR}/GlooConfig.cmake" @ONLY)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/GlooConfigVersion.cmake" VERSION "${gloo_version}" COMPATIBILITY AnyNewerVersion)
install(FILES "${PROJECT_BINARY_DIR}/GlooConfig.cmake" "${PROJECT_BINARY_DIR}/GlooConfigVersion.cmake"
        DESTINATION "${gloo_prefix}/lib/cmake/Gloo")

# The header of ibverbs only with the transport: programs ask whether it is there.
set(without "")
if(NOT ibverbs IN_LIST gloo_rs_features)
  set(without PATTERN ibverbs EXCLUDE)
endif()
install(DIRECTORY "${gloo_headers}/gloo" DESTINATION "${gloo_prefix}/include" FILES_MATCHING PATTERN "*.h" ${without})
# Here as well: who finds gloo/ by path alone has no other folder.
install(FILES "${gloo_headers}/gloo_rs.h" "${gloo_rs_features_h}" DESTINATION "${gloo_prefix}/include")

# libgloo.so has the soname of libgloo_rs.so, so that one lies beside it: programs look for it where they were linked.
set(gloo_links_dir "${PROJECT_BINARY_DIR}/gloo_links")
file(MAKE_DIRECTORY "${gloo_links_dir}")
set(gloo_links "")
foreach(link libgloo.so:libgloo_rs.so libgloo.a:libgloo_rs.a "${gloo_rs_soname}:${gloo_rs_soname}")
  string(REGEX MATCH "^(.*):(.*)$" link "${link}")
  file(CREATE_LINK "../../../${CMAKE_MATCH_2}" "${gloo_links_dir}/${CMAKE_MATCH_1}" SYMBOLIC)
  list(APPEND gloo_links "${gloo_links_dir}/${CMAKE_MATCH_1}")
endforeach()
install(FILES ${gloo_links} DESTINATION "${gloo_prefix}/lib")
