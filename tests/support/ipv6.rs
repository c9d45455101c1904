//! Check for tests that need IPv6.

/// Fails the test with a message on a host whose loopback has no IPv6 address.
pub fn needs_ipv6() {
    if let Err(error) = std::net::UdpSocket::bind("[::1]:0") {
        panic!("this test needs IPv6 on loopback (::1), which this host does not have: {error}");
    }
}
