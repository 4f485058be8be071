//! [`conformance`]: the list of all tests, and what each of them needs.

/// Makes a test of each behaviour of the contract, on the store that an `async fn` returns.
///
/// ```
/// # use std::sync::Arc;
/// # use lock_store_memory::MemoryStore as MyStore;
/// async fn store() -> Arc<MyStore> {
///     MyStore::new("")
/// }
///
/// lock_store_conformance::conformance!(store);
/// # fn main() {}
/// ```
///
/// The function takes nothing and returns a [`Subject`], or something that is turned
/// [into](Into) one. It is called once for each test, in the test's runtime, and no two calls may
/// return stores with the same keys. Arguments of `#[tokio::test]` may follow its name:
///
/// ```ignore
/// lock_store_conformance::conformance!(store, start_paused = true);
/// ```
///
/// Each group becomes a module of that name, beside the function.
///
/// [`Subject`]: crate::Subject
#[macro_export]
macro_rules! conformance {
    ($make:ident $(, $attribute:ident = $value:expr)* $(,)?) => {
        $crate::conformance! { @list @all [$make] [$($attribute = $value),*] }
    };
    // Each group and each test is followed by what it needs.
    (@list $($then:tt)*) => {
        $crate::conformance! { $($then)*
            claims {
                abilities_are_consistent
                all_that_is_not_claimed_is_refused
            }
            acquire {
                a_free_key_is_granted_and_a_held_one_is_busy
                both_handles_see_the_same_locks
                an_expired_lease_frees_the_key
                a_lease_lasts
                a_lease_may_be_very_long
                keys_that_differ_in_one_byte_are_different
                waiting_as_long_as_busy_says_is_enough
                acquire_of_two_items_is_all_or_nothing [Several]
                busy_names_the_first_busy_item [Several]
                two_items_may_have_two_owners [Several]
                resent_acquire_is_the_same_grant_and_never_shortens
                resent_acquire_takes_the_item_that_was_lost_in_between [Several]
                resent_acquire_that_is_busy_changes_nothing [Several]
                an_owner_whose_lease_ended_starts_again
                a_call_that_is_never_polled_does_nothing
                a_call_has_its_effect_when_it_is_polled_and_not_before
                one_of_many_rivals_gets_the_key
                one_of_many_rivals_gets_both_keys_whatever_their_order [Several]
                late_request_is_refused [ByClock]
                the_store_says_that_it_can_be_used
            }
            tokens {
                tokens_grow_across_grants_releases_and_expiry
                tokens_of_a_fresh_key_start_at_the_stores_clock [ClockTokens]
                range_of_tokens_belongs_to_one_grant [Ranges]
                the_largest_range_is_granted [Ranges]
                each_item_has_its_own_range [Several OwnTokens]
                resent_acquire_gets_new_tokens
                a_busy_answer_uses_no_tokens [OwnTokens]
                token_floor_is_respected [Floors]
                a_floor_below_the_counter_changes_nothing [Floors]
                a_counter_that_cannot_grow_is_an_error_and_takes_nothing [Floors]
            }
            release {
                release_frees_the_key
                release_said_twice_finds_nothing
                release_by_a_stranger_touches_nothing
                release_after_the_lease_finds_nothing
                release_after_the_lease_touches_nothing_of_the_next_holder
                release_of_two_items_answers_for_each [Several]
                linger_keeps_the_key_taken_and_never_lengthens [Shortens]
                linger_works_on_two_items [Shortens Several]
                linger_by_a_stranger_touches_nothing [Shortens]
                a_lingering_key_can_be_freed_at_once [Shortens]
            }
            renew {
                renew_lengthens
                a_renewed_lease_lasts
                renew_never_shortens
                renew_lets_the_counter_outlive_the_hold [ClockTokens OwnTokens]
                renew_treats_each_item_on_its_own
                renew_answers_in_the_order_of_the_request
                renew_answers_for_300_items
                renew_does_not_revive
                renew_by_a_stranger_touches_nothing
            }
            withdraw {
                withdraw_frees_what_was_taken_and_settles_after_latest
                withdraw_of_what_was_never_sent_is_settled
                a_request_that_was_withdrawn_before_it_was_sent_is_refused [ByClock]
                withdraw_of_a_busy_acquire_touches_nothing_of_the_holder
                withdraw_frees_every_item_that_is_ours_and_no_other [Several]
            }
            status {
                status_of_an_unknown_key_is_free
                status_shows_holder_lease_and_token
                status_shows_the_kind
                status_counts_who_listens [Pushed Listeners]
                status_remembers_the_token_of_a_free_key [ClockTokens OwnTokens]
                force_release_frees_whoever_holds
                force_release_keeps_the_counter
                force_release_of_a_free_key_says_so
                a_holder_after_force_release_is_a_stranger
            }
            kinds {
                kinds_exclude_each_other
                tokens_grow_across_kinds
                release_and_renew_by_a_stranger_touch_nothing
                force_release_frees_every_kind_and_wakes_who_waits
                an_acquire_that_was_granted_can_be_withdrawn
                requests_of_every_kind_can_be_late [ByClock]
            }
            watch [Pushed] {
                watch_hears_release_force_release_and_withdraw [Races]
                watch_does_not_hear_its_owners_releases [Races]
                watch_of_two_keys_hears_both [Several Races]
                watch_hears_a_lingering_release [Shortens Races]
                watch_does_not_hear_what_frees_nothing
                watch_does_not_hear_other_keys
                all_watches_of_a_key_hear [Races]
                listeners_are_counted_without_our_own [Listeners]
                readers_and_writers_listen_to_each_other [Listeners ReadWrite]
            }
            takeover [Takeovers] {
                takeover_follows_a_release
                takeover_happens_only_when_nobody_else_listens [Pushed Races]
                takeover_happens_only_when_nobody_else_queues [Queues]
                takeover_is_not_stopped_by_our_own_watch [Pushed]
                takeover_is_stopped_by_another_watch_of_ours [Pushed Races]
                takeover_ignores_phantoms_when_told
                takeover_of_two_items [Several]
                takeover_is_stopped_by_a_listener_on_one_of_two_keys [Several Pushed Races]
                takeover_needs_a_release_that_freed_something
                takeover_needs_a_release_that_freed_every_item [Several]
                takeover_does_not_follow_a_lingering_release [Shortens]
                takeover_is_stamped_like_any_acquire [ByClock]
                takeover_can_be_withdrawn
            }
            fair [Fair] {
                a_free_key_is_granted_and_a_held_one_is_busy
                who_asks_without_waiting_leaves_no_trace
                who_asks_without_waiting_is_refused_while_others_wait [FreeQueues]
                who_asks_again_keeps_its_place
                a_mutex_passes_the_queue [Races]
                status_counts_the_queue
                renew_says_how_long_a_waiter_has_to_wait [FreeQueues]
                keeping_a_place_outside_the_queue_answers_gone
                withdraw_gives_up_the_place
                a_late_request_does_not_join [ByClock]
                a_place_that_is_not_kept_is_lost
                a_place_that_is_kept_lasts
                resent_acquire_of_the_holder_is_the_same_grant
                a_lingering_release_is_told_and_grants_nothing [Shortens FreeQueues]
                takeover_is_declined
            }
            fair_turns [Fair] {
                waiters_are_served_in_the_order_they_came [Direct Pushed]
                a_release_grants_the_key_to_the_first_waiter [Direct Pushed]
                a_direct_grant_is_no_longer_than_the_lease [Direct Pushed]
                a_withdrawal_of_the_holder_grants_the_key [Direct Pushed]
                a_forced_release_grants_the_key_and_keeps_the_queue [Direct Pushed]
                a_waiter_that_missed_its_grant_learns_of_it [Direct Pushed]
                the_dead_are_passed_over [Direct Pushed]
                a_waiter_that_vanished_with_its_grant_loses_it [Direct Pushed]
                tokens_grow_across_direct_grants [Direct Pushed]
                waiters_get_their_turns_in_the_order_they_came
                a_waiter_that_does_not_listen_gets_its_turn
                an_expired_hold_leaves_the_key_to_the_first_waiter [FreeQueues]
                the_next_hears_when_the_first_of_a_free_key_withdraws [FreeQueues]
                the_next_hears_when_the_first_of_a_free_key_is_found_dead [FreeQueues]
            }
            mutex_queue [Queues] {
                a_free_key_is_granted_and_a_held_one_is_busy
                who_asks_without_waiting_leaves_no_trace
                who_asks_without_waiting_is_refused_while_others_wait [FreeQueues]
                who_asks_again_keeps_its_place
                status_counts_the_queue
                renew_says_how_long_a_waiter_has_to_wait [FreeQueues]
                keeping_a_place_outside_the_queue_answers_gone
                withdraw_gives_up_the_place
                a_late_request_does_not_join [ByClock]
                a_place_that_is_not_kept_is_lost
                a_place_that_is_kept_lasts
                resent_acquire_of_the_holder_is_the_same_grant
                a_lingering_release_is_told_and_grants_nothing [Shortens FreeQueues]
            }
            mutex_turns [Queues] {
                waiters_are_served_in_the_order_they_came [Direct Pushed]
                a_release_grants_the_key_to_the_first_waiter [Direct Pushed]
                a_direct_grant_is_no_longer_than_the_lease [Direct Pushed]
                a_withdrawal_of_the_holder_grants_the_key [Direct Pushed]
                a_forced_release_grants_the_key_and_keeps_the_queue [Direct Pushed]
                a_waiter_that_missed_its_grant_learns_of_it [Direct Pushed]
                the_dead_are_passed_over [Direct Pushed]
                a_waiter_that_vanished_with_its_grant_loses_it [Direct Pushed]
                tokens_grow_across_direct_grants [Direct Pushed]
                waiters_get_their_turns_in_the_order_they_came
                a_waiter_that_does_not_listen_gets_its_turn
                an_expired_hold_leaves_the_key_to_the_first_waiter [FreeQueues]
                the_next_hears_when_the_first_of_a_free_key_withdraws [FreeQueues]
                the_next_hears_when_the_first_of_a_free_key_is_found_dead [FreeQueues]
            }
            read_write [ReadWrite] {
                readers_share_a_key
                a_writer_excludes_everybody
                resent_acquire_is_the_same_grant_and_never_shortens
                each_reader_has_its_own_lease
                a_key_is_taken_until_its_last_reader_ends
                release_of_one_reader_leaves_the_others
                release_by_a_stranger_touches_nothing
                calls_go_by_what_the_owner_has
                a_writer_may_read_too_and_a_reader_may_not_write [Intents]
                the_last_reader_and_the_writer_wake_who_waits [Pushed Intents]
                an_expired_writer_frees_the_key
                linger_shortens_and_is_told [Shortens Intents]
                force_release_frees_readers_and_writers [Intents]
                one_of_many_writers_gets_the_key
                renew_of_waiters_is_never_gone
                takeover_is_declined
            }
            intent [ReadWrite Intents] {
                a_waiting_writer_keeps_new_readers_out
                a_writer_that_does_not_wait_keeps_nobody_out
                an_intent_ends_by_itself
                an_intent_is_kept
                an_intent_is_not_kept_when_the_readers_are_gone
                a_writer_that_finds_readers_later_is_told_to_ask_again
                an_intent_stops_no_writer
                an_intent_ends_with_the_grant
                withdraw_of_a_waiting_writer_lets_readers_in
                a_writer_that_waits_for_a_writer_keeps_nobody_out
                a_writer_that_waits_for_a_mutex_keeps_nobody_out
                a_late_request_keeps_nobody_out [ByClock]
            }
            downgrade [Downgrade] {
                a_writer_becomes_a_reader
                waiting_readers_hear_of_it
                it_lengthens_and_never_shortens
                who_reads_already_is_renewed
                who_holds_nothing_is_told
                each_item_is_on_its_own
                a_downgraded_hold_is_given_back_like_any
                withdraw_of_the_writer_gives_back_the_reader
            }
            several [Several] {
                items_of_every_kind_are_granted_together
                nothing_is_taken_when_one_item_is_busy
                answers_are_in_the_order_of_the_request
                a_request_may_have_64_keys
                busy_names_the_first_busy_item_of_any_kind [Fair ReadWrite]
                a_refused_request_joins_every_queue [Fair FreeQueues]
                a_request_that_lost_one_place_queues_again_for_all_keys [Fair]
                a_refused_request_that_does_not_wait_leaves_no_trace [Fair ReadWrite]
                a_refused_request_announces_its_writers [ReadWrite Races]
                a_request_of_several_is_told_and_not_granted [Fair FreeQueues]
                its_places_are_given_up_when_it_is_granted [Fair]
                its_places_are_given_up_when_it_is_withdrawn [Fair]
                a_request_behind_one_of_several_gets_its_turn [Fair]
                renew_answers_for_each [Fair ReadWrite]
            }
            scan [Scan] {
                scan_finds_locks_of_every_kind
                scan_finds_nothing_that_is_free [FreeQueues]
                scan_takes_its_prefix_literally
                scan_goes_through_many_locks
                a_lock_that_stays_is_found_while_others_come_and_go
            }
            semaphore [Semaphores] {
                a_semaphore_without_permits_has_none
                permits_are_taken_until_none_are_left
                acquire_of_many_permits_is_all_or_nothing
                resent_acquire_of_permits_takes_no_more_and_never_shortens
                expired_permits_come_back_whoever_looks_first
                waiting_as_long_as_a_busy_semaphore_says_is_enough
                release_tells_which_permits_were_held_and_loses_none
                renew_treats_each_permit_on_its_own
                many_permits_are_kept_together
                renew_of_permits_never_shortens
                withdraw_gives_permits_back_and_settles_after_latest
                permits_that_were_withdrawn_before_they_were_asked_for_are_not_taken [ByClock]
                permits_are_set_once_and_changed_at_will
                more_permits_than_java_can_count_are_refused
                a_watch_hears_whenever_permits_come_back [Pushed]
                a_watch_hears_nothing_of_permits_that_nobody_can_take [Pushed]
                permits_are_never_more_than_there_are
            }
            latch [Latches] {
                a_latch_is_set_once_until_it_is_at_zero
                a_count_down_that_is_sent_again_counts_once
                counting_below_zero_leaves_nothing
                an_id_is_forgotten_after_its_time
                a_deleted_latch_is_gone
                a_watch_hears_zero_and_deletion_and_a_new_count [Pushed]
                a_latch_with_a_hash_tag_is_refused
            }
        }
    };
    (@all $make:tt $attributes:tt
        $($group:ident $([$($need:ident)*])? { $($name:ident $([$($more:ident)*])?)* })*
    ) => {
        $( mod $group {
            $crate::conformance! { @group $make $attributes $group [$($($need)*)?]
                $($name [$($($more)*)?])*
            }
        } )*
    };
    (@group $make:tt $attributes:tt $group:ident $needs:tt $($name:ident $more:tt)*) => {
        $( $crate::conformance! { @test $make $attributes $group $name $needs $more } )*
    };
    (@test [$make:ident] [$($attributes:tt)*] $group:ident $name:ident
        [$($need:ident)*] [$($more:ident)*]
    ) => {
        #[tokio::test($($attributes)*)]
        async fn $name() {
            $crate::run(
                super::$make,
                concat!(stringify!($group), "::", stringify!($name)),
                &[$($crate::Need::$need,)* $($crate::Need::$more,)*],
                $crate::$group::$name,
            ).await;
        }
    };
    (@names $($group:ident $([$($need:ident)*])? { $($name:ident $([$($more:ident)*])?)* })*) => {
        &[$($(concat!(stringify!($group), "::", stringify!($name)),)*)*]
    };
}

/// All tests, as `group::test`.
pub(crate) const TESTS: &[&str] = crate::conformance! { @list @names };
