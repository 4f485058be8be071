//! Fuzzes the parser of server replies.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::reply(data));
