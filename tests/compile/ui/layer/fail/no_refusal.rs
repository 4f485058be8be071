// What makes no response.
use lock_runtime::layer::{Refusal, Refuse};

struct Settings;

fn takes<R: Refuse>(_: R) {}

fn main() {
    takes(Settings);
    takes(|_: &Refusal<'_>| "no");
}
