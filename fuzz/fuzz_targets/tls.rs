#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gloo_rs::testing::fuzz::tls(data));
