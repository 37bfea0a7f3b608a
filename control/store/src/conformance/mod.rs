//! What every backend of [`Store`] must do, as one suite of assertions.
//!
//! A backend's tests call [`run`] with a function that makes an empty database. Each behaviour gets a fresh one and
//! panics when it does not hold; the suite needs a multi-threaded Tokio runtime, since races are among what it tests.

#![expect(clippy::unwrap_used, reason = "a test suite: it panics when a backend is wrong")]

mod concurrency;
mod durability;
mod fixture;
mod idempotency;
mod keys;
mod leases;
mod listing;
mod pauses;
mod sandboxes;
mod telemetry;
mod templates;

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use crate::Store;

/// One database under test, empty at first.
#[async_trait]
pub trait Subject: Send + Sync {
    /// A handle to it. Called several times it gives handles to the same data, opened anew where the backend can.
    async fn open(&self) -> Arc<dyn Store>;
}

macro_rules! behaviours {
    ($fresh:ident: $($module:ident :: $behaviour:ident,)+) => {
        $({
            tracing::debug!(behaviour = concat!(stringify!($module), "::", stringify!($behaviour)), "checking");
            let subject = $fresh().await;
            $module::$behaviour(&subject).await;
        })+
    };
}

/// Checks all behaviours, one after the other.
pub async fn run<F, S, Fut>(fresh: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
    S: Subject,
{
    behaviours! { fresh:
        keys::the_default_team_is_made_once,
        keys::team_slugs_are_unique,
        keys::an_unknown_team_is_not_found,
        keys::a_key_is_found_by_its_hash_alone,
        keys::a_revoked_key_is_gone_at_once,
        keys::a_key_is_revoked_by_name_or_id_within_its_team,
        keys::an_id_wins_over_a_name_when_revoking,
        keys::live_key_names_are_unique_in_a_team,
        keys::the_last_use_of_a_key_never_goes_back,
        templates::a_template_is_kept_with_its_names_in_order,
        templates::replacing_a_template_keeps_what_the_store_counts,
        templates::names_are_unique_in_a_team_and_free_again_when_given_up,
        templates::a_rejected_template_changes_nothing,
        templates::a_name_is_looked_up_in_the_own_team_first,
        templates::private_templates_are_not_found_by_others,
        templates::the_newest_ready_build_of_a_tag_serves,
        templates::a_build_can_be_replaced_but_not_stolen,
        templates::starts_are_counted,
        sandboxes::a_new_sandbox_is_kept_as_asked_for,
        sandboxes::metadata_may_be_any_text,
        sandboxes::an_id_is_used_once,
        sandboxes::only_a_creating_sandbox_becomes_running,
        sandboxes::states_move_only_from_where_they_may,
        sandboxes::an_ended_sandbox_stays_ended,
        sandboxes::unknown_sandboxes_are_not_found,
        sandboxes::the_limit_counts_what_occupies_a_place,
        sandboxes::live_sandboxes_are_those_that_may_have_an_instance,
        sandboxes::the_tokens_of_running_sandboxes_are_found,
        sandboxes::purging_forgets_ended_sandboxes_with_their_telemetry,
        listing::a_list_shows_what_clients_may_see,
        listing::a_list_is_filtered_by_state_metadata_time_and_template,
        listing::every_metadata_pair_must_match_exactly,
        listing::pages_cover_everything_in_either_order,
        listing::pages_are_stable_under_churn,
        leases::a_deadline_moves_only_while_it_runs,
        leases::extending_never_shortens,
        leases::expired_sandboxes_come_longest_overdue_first,
        leases::the_next_deadline_is_the_earliest_of_the_running,
        leases::shifting_moves_every_live_lease_and_no_other,
        pauses::a_pause_is_begun_done_and_remembered,
        pauses::only_what_runs_is_paused,
        pauses::a_pause_that_failed_costs_no_lease,
        pauses::a_resumed_sandbox_begins_a_new_run,
        pauses::what_happens_at_the_end_of_the_lease_is_remembered,
        pauses::a_resume_needs_a_free_place,
        pauses::paused_sandboxes_are_found_whatever_the_team,
        pauses::the_clock_moves_pauses_along,
        idempotency::a_key_is_claimed_answered_and_replayed,
        idempotency::another_request_with_the_key_is_a_mismatch,
        idempotency::a_claim_that_ran_out_is_an_unknown_outcome,
        idempotency::a_released_key_can_be_claimed_again,
        idempotency::keys_are_forgotten_after_a_day,
        idempotency::keys_belong_to_a_team,
        telemetry::samples_come_oldest_first_within_their_range,
        telemetry::samples_of_the_same_step_become_one_with_the_peaks,
        telemetry::the_latest_sample_of_each_is_found,
        telemetry::log_lines_are_read_in_both_directions,
        telemetry::log_lines_are_filtered_by_level_and_text,
        telemetry::the_oldest_lines_make_room_for_new_ones,
        telemetry::old_telemetry_is_purged,
        concurrency::twenty_creates_at_a_limit_of_five_give_five,
        concurrency::one_of_ten_claims_wins,
        concurrency::one_of_ten_ends_wins,
        concurrency::one_of_ten_moves_wins,
        concurrency::a_failing_write_takes_back_only_itself,
        durability::a_second_handle_sees_what_was_acknowledged,
        durability::what_was_acknowledged_is_there_after_reopening,
        durability::an_abandoned_call_leaves_the_store_usable,
    }
}
