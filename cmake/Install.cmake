# What `cmake --install` puts where. Nothing installed holds a path of the build or of the prefix: it may be moved.
include(CMakePackageConfigHelpers)

# All but the debug information, so that `cmake --install --component gloo_rs` leaves that out.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME gloo_rs)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gloo_rs")
set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/gloo_rsConfig.cmake.in" "${PROJECT_BINARY_DIR}/gloo_rsConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# As the soname: before 1.0 any minor version may break programs.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gloo_rsConfigVersion.cmake" COMPATIBILITY SameMinorVersion)

# pkg-config finds the prefix from where the file lies. Paths outside the prefix stay as they are.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up "/${pkgconfig_dir}" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pc_prefix "\${pcfiledir}/${up}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(pc_${dir} "${CMAKE_INSTALL_${dir}}")
  else()
    set(pc_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
list(TRANSFORM gloo_rs_native_libs PREPEND "-l" OUTPUT_VARIABLE pc_native_libs)
list(JOIN pc_native_libs " " pc_native_libs)
set(pc_files)
foreach(name gloo_rs gloo_rs_library)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in" "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  list(APPEND pc_files "${PROJECT_BINARY_DIR}/${name}.pc")
endforeach()
# A folder with the static library alone: where -lgloo_rs means that one. gloo_rs.pc says why.
set(static_alone "${gloo_rs_lib_dir}/gloo_rs/libgloo_rs.a")
file(MAKE_DIRECTORY "${gloo_rs_lib_dir}/gloo_rs")
file(CREATE_LINK ../libgloo_rs.a "${static_alone}" SYMBOLIC)

install(TARGETS gloo_rs_shared LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${gloo_rs_archive}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/include/gloo_rs.h" "${PROJECT_SOURCE_DIR}/include/gloo_rs.hpp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_BINARY_DIR}/gloo_rsConfig.cmake" "${PROJECT_BINARY_DIR}/gloo_rsConfigVersion.cmake"
        DESTINATION "${package_dir}")
install(FILES "${static_alone}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/gloo_rs")
install(FILES ${pc_files} DESTINATION "${pkgconfig_dir}")
if(GLOO_RS_BUILD_TOOL)
  install(PROGRAMS "${gloo_rs_tool_file}" DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # Man pages, and completion for bash, zsh and fish: the tool writes them, each in its folder of share.
  set(gloo_rs_pages "${PROJECT_BINARY_DIR}/share")
  set(pages_made "${gloo_rs_pages}/man/man1/gloo-rs.1")
  add_custom_command(OUTPUT "${pages_made}"
    COMMAND "${CMAKE_COMMAND}" -E rm -rf "${gloo_rs_pages}"
    COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} "${gloo_rs_tool_file}" pages "${gloo_rs_pages}"
    DEPENDS gloo_rs_tool "${gloo_rs_tool_file}"
    COMMENT "Writing man pages and completions"
    VERBATIM)
  add_custom_target(gloo_rs_pages ALL DEPENDS "${pages_made}")
  install(DIRECTORY "${gloo_rs_pages}/" DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}")
endif()

if(GLOO_RS_DEBUG_INFO)
  install(FILES "${gloo_rs_lib_dir}/.debug/libgloo_rs.so.${PROJECT_VERSION}.debug" DESTINATION "${CMAKE_INSTALL_LIBDIR}/.debug"
          COMPONENT gloo_rs_debug)
  if(GLOO_RS_BUILD_TOOL)
    install(FILES "${PROJECT_BINARY_DIR}/bin/.debug/gloo-rs.debug" DESTINATION "${CMAKE_INSTALL_BINDIR}/.debug" COMPONENT gloo_rs_debug)
  endif()
endif()

# Not CMAKE_INSTALL_DOCDIR, which has the name of the outermost project.
set(third_party "${PROJECT_BINARY_DIR}/THIRD-PARTY-LICENSES")
set(licences_script "${PROJECT_SOURCE_DIR}/cmake/licences.sh")
add_custom_command(OUTPUT "${third_party}"
  COMMAND "${licences_script}" "${third_party}" "${rust_target}" ${cargo_build}
  DEPENDS gloo_rs_cargo "${licences_script}" ${cargo_byproducts}
  COMMENT "Collecting licences of what is linked"
  VERBATIM)
add_custom_target(gloo_rs_licences ALL DEPENDS "${third_party}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE-MIT" "${PROJECT_SOURCE_DIR}/LICENSE-APACHE" "${third_party}"
        DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/gloo_rs")
