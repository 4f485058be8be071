//! [`conformance`]: the list of all tests.

/// One `#[tokio::test]` per behaviour. See the [module](super).
#[macro_export]
macro_rules! conformance {
    ($make:ident $(, $attribute:ident = $value:expr)*) => {
        $crate::conformance! { required: $make $(, $attribute = $value)* }
        /// The features that a store may leave out: takeovers, grants by a release, semaphores and
        /// latches.
        mod optional {
            use super::$make;
            $crate::conformance! { @all [$make] [$($attribute = $value),*]
                fair_turns {
                    waiters_are_served_in_the_order_they_came
                    a_release_grants_the_key_to_the_first_waiter
                    a_direct_grant_is_no_longer_than_the_lease
                    a_withdrawal_of_the_holder_grants_the_key
                    a_forced_release_grants_the_key_and_keeps_the_queue
                    a_waiter_that_missed_its_grant_learns_of_it
                    the_dead_are_passed_over
                    a_waiter_that_vanished_with_its_grant_loses_it
                    tokens_grow_across_direct_grants
                }
                takeover {
                    takeover_follows_a_release
                    takeover_happens_only_when_nobody_else_listens
                    takeover_is_not_stopped_by_our_own_watch
                    takeover_is_stopped_by_another_watch_of_ours
                    takeover_ignores_phantoms_when_told
                    takeover_of_two_items
                    takeover_needs_a_release_that_freed_something
                    takeover_needs_a_release_that_freed_every_item
                    takeover_does_not_follow_a_lingering_release
                    takeover_is_stamped_like_any_acquire
                    takeover_can_be_withdrawn
                }
                semaphore {
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
                    permits_that_were_withdrawn_before_they_were_asked_for_are_not_taken
                    permits_are_set_once_and_changed_at_will
                    more_permits_than_java_can_count_are_refused
                    a_watch_hears_whenever_permits_come_back
                    a_watch_hears_nothing_of_permits_that_nobody_can_take
                    permits_are_never_more_than_there_are
                }
                latch {
                    a_latch_is_set_once_until_it_is_at_zero
                    a_count_down_that_is_sent_again_counts_once
                    counting_below_zero_leaves_nothing
                    an_id_is_forgotten_after_its_time
                    a_deleted_latch_is_gone
                    a_watch_hears_zero_and_deletion_and_a_new_count
                    a_latch_with_a_hash_tag_is_refused
                }
            }
        }
    };
    (required: $make:ident $(, $attribute:ident = $value:expr)*) => {
        $crate::conformance! { @all [$make] [$($attribute = $value),*]
            acquire {
                a_free_key_is_granted_and_a_held_one_is_busy
                both_handles_see_the_same_locks
                an_expired_lease_frees_the_key
                waiting_as_long_as_busy_says_is_enough
                acquire_of_two_items_is_all_or_nothing
                busy_names_the_first_busy_item
                two_items_may_have_two_owners
                resent_acquire_is_the_same_grant_and_never_shortens
                resent_acquire_takes_the_item_that_was_lost_in_between
                resent_acquire_that_is_busy_changes_nothing
                an_owner_whose_lease_ended_starts_again
                a_call_that_is_never_polled_does_nothing
                a_call_has_its_effect_when_it_is_polled_and_not_before
                one_of_many_rivals_gets_the_key
                one_of_many_rivals_gets_both_keys_whatever_their_order
                late_request_is_refused
                the_store_says_that_it_can_be_used
            }
            tokens {
                tokens_grow_across_grants_releases_and_expiry
                tokens_of_a_fresh_key_start_at_the_stores_clock
                range_of_tokens_belongs_to_one_grant
                the_largest_range_is_granted
                each_item_has_its_own_range
                resent_acquire_gets_new_tokens
                a_busy_answer_uses_no_tokens
                token_floor_is_respected
                a_floor_below_the_counter_changes_nothing
                a_counter_that_cannot_grow_is_an_error_and_takes_nothing
            }
            release {
                release_frees_the_key
                release_said_twice_finds_nothing
                release_by_a_stranger_touches_nothing
                release_after_the_lease_finds_nothing
                release_after_the_lease_touches_nothing_of_the_next_holder
                release_of_two_items_answers_for_each
                linger_keeps_the_key_taken_and_never_lengthens
                linger_works_on_two_items
                linger_by_a_stranger_touches_nothing
                a_lingering_key_can_be_freed_at_once
            }
            renew {
                renew_lengthens
                renew_never_shortens
                renew_lets_the_counter_outlive_the_hold
                renew_treats_each_item_on_its_own
                renew_does_not_revive
                renew_by_a_stranger_touches_nothing
            }
            withdraw {
                withdraw_frees_what_was_taken_and_settles_after_latest
                withdraw_of_what_was_never_sent_is_settled
                withdraw_of_a_busy_acquire_touches_nothing_of_the_holder
                withdraw_frees_every_item_that_is_ours_and_no_other
            }
            fair {
                a_free_key_is_granted_and_a_held_one_is_busy
                who_asks_without_waiting_leaves_no_trace
                who_asks_without_waiting_is_refused_while_others_wait
                who_asks_again_keeps_its_place
                a_mutex_passes_the_queue
                status_counts_the_queue
                renew_says_how_long_a_waiter_has_to_wait
                keeping_a_place_outside_the_queue_answers_gone
                withdraw_gives_up_the_place
                a_late_request_does_not_join
                a_place_that_is_not_kept_is_lost
                a_place_that_is_kept_lasts
                resent_acquire_of_the_holder_is_the_same_grant
                a_lingering_release_is_told_and_grants_nothing
                takeover_is_declined
            }
            fair_turns {
                a_waiter_that_does_not_listen_gets_its_turn
                an_expired_hold_leaves_the_key_to_the_first_waiter
                the_next_hears_when_the_first_of_a_free_key_withdraws
                the_next_hears_when_the_first_of_a_free_key_is_found_dead
            }
            read_write {
                readers_share_a_key
                a_writer_excludes_everybody
                resent_acquire_is_the_same_grant_and_never_shortens
                each_reader_has_its_own_lease
                a_key_is_taken_until_its_last_reader_ends
                release_of_one_reader_leaves_the_others
                release_by_a_stranger_touches_nothing
                calls_go_by_what_the_owner_has
                a_writer_may_read_too_and_a_reader_may_not_write
                the_last_reader_and_the_writer_wake_who_waits
                an_expired_writer_frees_the_key
                linger_shortens_and_is_told
                force_release_frees_readers_and_writers
                one_of_many_writers_gets_the_key
                renew_of_waiters_is_never_gone
                takeover_is_declined
            }
            intent {
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
                a_late_request_keeps_nobody_out
            }
            downgrade {
                a_writer_becomes_a_reader
                waiting_readers_hear_of_it
                it_lengthens_and_never_shortens
                who_reads_already_is_renewed
                who_holds_nothing_is_told
                each_item_is_on_its_own
                a_downgraded_hold_is_given_back_like_any
            }
            kinds {
                kinds_exclude_each_other
                tokens_grow_across_kinds
                release_and_renew_by_a_stranger_touch_nothing
                force_release_frees_every_kind_and_wakes_who_waits
                an_acquire_that_was_granted_can_be_withdrawn
                requests_of_every_kind_can_be_late
            }
            several {
                items_of_every_kind_are_granted_together
                nothing_is_taken_when_one_item_is_busy
                busy_names_the_first_busy_item_of_any_kind
                a_refused_request_joins_every_queue
                a_request_that_lost_one_place_queues_again_for_all_keys
                a_refused_request_that_does_not_wait_leaves_no_trace
                a_refused_request_announces_its_writers
                a_request_of_several_is_told_and_not_granted
                its_places_are_given_up_when_it_is_granted
                its_places_are_given_up_when_it_is_withdrawn
                a_request_behind_one_of_several_gets_its_turn
                renew_answers_for_each
            }
            watch {
                watch_hears_release_force_release_and_withdraw
                watch_does_not_hear_its_owners_releases
                watch_of_two_keys_hears_both
                watch_hears_a_lingering_release
                watch_does_not_hear_what_frees_nothing
                watch_does_not_hear_other_keys
                all_watches_of_a_key_hear
                listeners_are_counted_without_our_own
                readers_and_writers_listen_to_each_other
            }
            status {
                status_of_an_unknown_key_is_free
                status_shows_holder_lease_and_token
                status_shows_the_kind
                status_counts_who_listens
                status_remembers_the_token_of_a_free_key
                force_release_frees_whoever_holds
                force_release_keeps_the_counter
                force_release_of_a_free_key_says_so
                a_holder_after_force_release_is_a_stranger
            }
            scan {
                scan_finds_locks_of_every_kind
                scan_finds_nothing_that_is_free
                scan_takes_its_prefix_literally
                scan_goes_through_many_locks
                a_lock_that_stays_is_found_while_others_come_and_go
            }
        }
    };
    (@all $make:tt $attributes:tt $($group:ident { $($name:ident)* })*) => {
        $( mod $group {
            $crate::conformance! { @group $make $attributes $group $($name)* }
        } )*
    };
    (@group $make:tt $attributes:tt $group:ident $($name:ident)*) => {
        $( $crate::conformance! { @test $make $attributes $group $name } )*
    };
    (@test [$make:ident] [$($attributes:tt)*] $group:ident $name:ident) => {
        #[tokio::test($($attributes)*)]
        async fn $name() {
            let subject = || async { super::$make().await.in_test(stringify!($name)) };
            $crate::undisturbed(subject, $crate::$group::$name).await;
        }
    };
}
