//! The tower layer on the memory store, as requests, their clients, and the surrounding services
//! see it.
#![cfg(feature = "layer")]

mod annotated;
mod bounds;
mod clients;
mod detached;
mod in_axum;
mod load;
mod lost;
mod nested;

mod readiness;
mod refusals;
mod requests;
mod rig;
mod sequential;
mod store_down;
