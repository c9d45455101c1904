# What `cpack -G DEB` makes of what is installed: a Debian package.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gloo-rs)
set(CPACK_PACKAGE_CONTACT "The gloo_rs authors <gloo_rs@localhost>")
set(CPACK_PACKAGE_DESCRIPTION "The processes of a job sum, broadcast, gather and exchange buffers
over shared memory, TCP, TLS or InfiniBand. The package has the library
gloo_rs, shared and static, its header, its CMake package, and the tool
gloo-rs.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)
# Without debug information, whether it is made or not.
set(CPACK_COMPONENTS_ALL gloo_rs)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Lets packages depend on the library, and calls ldconfig.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
if(ibverbs IN_LIST gloo_rs_features)
  # Loaded at run time, by jobs that use it.
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libibverbs1, ibverbs-providers")
endif()
include(CPack)
