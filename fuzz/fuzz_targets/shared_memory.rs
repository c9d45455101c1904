#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gloo_rs::fuzzing::shared_memory(data));
