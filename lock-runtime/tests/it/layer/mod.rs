//! The tower layer on the memory store: what requests, their clients, and the services around them
//! see of it.
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
