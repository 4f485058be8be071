//! Fuzzes the parser of lock URLs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::url(data));
