//! Fuzzes the parser of durations in the attribute.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::duration(data));
