//! Fuzzes the parser of key templates in the attribute.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lock_fuzz::key_template(data));
