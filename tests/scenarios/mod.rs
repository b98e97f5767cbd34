//! What the agent must do, told once and run on both runtimes: `component` on the fake, `node` on a
//! private real containerd. A scenario drops manifests, breaks things, and looks at the agent's
//! status and at the runtime; at its end every pod must go without a trace.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "each test binary uses its own part; a panic is how a test fails"
)]

pub mod adoption;
pub mod asked;
pub mod asks;
pub mod chaos;
pub mod confinement;
pub mod copies;
pub mod credential_providers;
pub mod daemon;
pub mod damage;
pub mod disk;
pub mod disk_pressure;
pub mod drivers;
pub mod dual_stack;
pub mod edits;
pub mod examples;
pub mod faults;
pub mod fields;
pub mod hooks;
pub mod identity;
pub mod image_collection;
pub mod image_volumes;
pub mod images;
pub mod leftovers;
pub mod lifecycle;
pub mod log_rotation;
pub mod looks;
pub mod memory_pressure;
pub mod memory_restarts;
pub mod memory_rig;
pub mod objects;
pub mod order;
pub mod overtaken_stops;
pub mod people;
pub mod pid_pressure;
pub mod pressure;
pub mod probes;
pub mod propagation;
pub mod pull_records;
pub mod registry;
pub mod resize;
pub mod restart_rules;
pub mod runtime;
pub mod runtime_class;
pub mod sessions;
pub mod shutdown;
pub mod stats;
pub mod stuck;
pub mod updates;
pub mod url;
pub mod usage;
pub mod user_namespaces;
pub mod versions;
pub mod writes;

/// Hands the list of all scenarios that both runtimes must pass to a macro.
macro_rules! shared_scenarios {
    ($tier:ident) => {
        $tier! {
            lifecycle::a_dropped_manifest_runs,
            lifecycle::init_containers_and_sidecars_keep_their_order,
            lifecycle::jobs_run_to_their_end,
            lifecycle::a_job_that_comes_back_during_its_removal_runs_again,
            lifecycle::a_crashing_container_backs_off,
            lifecycle::a_killed_container_comes_back,
            lifecycle::a_pod_past_its_deadline_is_ended,
            lifecycle::nothing_is_done_when_nothing_changes,
            lifecycle::many_pods_at_once,
            updates::an_update_waits_for_its_image,
            updates::an_update_waits_for_its_objects,
            updates::a_revision_that_is_not_ready_is_rolled_back,
            order::a_pod_starts_after_the_pods_and_jobs_that_it_names,
            order::pods_that_wait_for_each_other_are_rejected_until_an_edit,
            order::the_start_order_restarts_nothing,
            order::pods_start_in_order_again_after_a_reboot,
            order::an_update_waits_for_a_job_that_it_starts_after,
            edits::an_edit_replaces_the_pod_after_the_old_one_is_gone,
            edits::a_pod_that_comes_back_at_once_begins_anew,
            edits::an_edit_of_comments_changes_nothing,
            edits::bad_edits_keep_the_pod,
            edits::a_vanished_directory_keeps_its_pods,
            edits::of_two_manifests_with_one_name_the_running_one_stays,
            edits::what_is_no_manifest_is_listed_with_its_reason,
            objects::objects_written_beside_a_pod_are_there_at_its_start,
            objects::a_pod_waits_for_objects_and_starts_when_they_come,
            objects::an_edited_object_reaches_the_volume_and_restarts_nothing,
            objects::an_edited_label_reaches_the_volume_and_restarts_nothing,
            objects::a_pull_that_hangs_delays_no_change_of_objects,
            objects::a_pod_that_asks_for_it_restarts_when_its_data_change,
            objects::nothing_of_a_secret_is_told,
            probes::readiness_follows_its_command,
            probes::a_failed_liveness_probe_restarts_its_container,
            probes::other_probes_wait_for_the_startup_probe,
            probes::a_sidecar_that_has_not_started_holds_up_the_others,
            probes::a_ready_pod_stays_ready_while_the_agent_restarts,
            probes::a_probe_that_hangs_holds_up_no_other,
            hooks::post_start_hooks_over_http_fail_without_an_answer,
            hooks::pre_stop_hooks_over_http_hold_a_stop_only_while_they_wait,
            overtaken_stops::a_removed_pod_does_not_wait_for_the_stop_of_a_container,
            overtaken_stops::nothing_is_removed_while_an_earlier_stop_is_under_way,
            overtaken_stops::a_pre_stop_hook_that_has_ended_is_not_called_again,
            overtaken_stops::a_pre_stop_hook_that_runs_may_end_within_the_new_grace_period,
            overtaken_stops::a_pre_stop_hook_ends_with_the_new_grace_period,
            overtaken_stops::a_shutdown_does_not_wait_for_the_stop_of_a_container,
            overtaken_stops::a_shutdown_does_not_wait_for_a_restart_that_was_asked_for,
            overtaken_stops::the_hook_of_an_asked_restart_ends_with_the_shutdown,
            overtaken_stops::a_shutdown_does_not_wait_for_the_replacement_of_a_sandbox,
            overtaken_stops::a_shutdown_does_not_wait_for_a_failed_post_start_hook,
            overtaken_stops::an_earlier_stop_that_hangs_alone_is_named,
            url::pods_of_a_url_stay_while_it_is_away,
            url::redirects_of_a_url_take_headers_nowhere_else,
            identity::a_pod_removed_during_a_reboot_is_not_started_again,
            identity::a_removed_pod_with_a_dead_container_stays_ended,
            identity::last_good_pods_start_after_a_reboot_without_their_manifests,
            identity::a_renamed_pod_waits_until_nothing_has_its_uid,
            identity::of_two_manifests_with_one_uid_the_running_one_stays,
            adoption::a_killed_agent_finds_its_pods_again,
            adoption::a_container_that_died_meanwhile_is_restarted,
            adoption::a_manifest_removed_meanwhile_ends_its_pod_with_its_own_grace,
            adoption::a_manifest_edited_meanwhile_replaces_its_pod_in_order,
            adoption::a_manifest_broken_meanwhile_keeps_its_pod,
            adoption::a_manifest_refused_after_a_restart_keeps_its_pod,
            adoption::back_off_outlives_the_agent,
            adoption::killed_around_every_mutating_call,
            images::pull_policies_and_their_reasons,
            images::a_pull_that_the_agent_gives_up_is_no_failure,
            image_volumes::a_runtime_without_image_volumes_starts_nothing,
            runtime::a_dead_daemon_restarts_nothing,
            runtime::a_node_without_its_runtime_is_not_ready,
            runtime::a_dead_sandbox_is_replaced,
            runtime::a_foreign_pod_is_left_alone,
            runtime::a_name_that_another_agent_took_is_left_to_it,
            runtime::pods_wait_for_the_network_and_host_network_pods_do_not,
            runtime::a_second_agent_refuses_and_names_the_first,
            runtime::a_pod_without_cluster_dns_is_told_in_a_cluster,
            drivers::a_runtime_with_the_other_cgroup_driver_is_named,
            faults::a_container_that_cannot_be_stopped_ends_with_its_sandbox,
            faults::a_hung_call_holds_up_only_its_pod,
            faults::every_hung_call_of_a_pod_is_named,
            faults::a_hung_inspection_holds_up_only_its_pod,
            faults::lost_answers_make_no_doubles,
            faults::nothing_is_started_again_before_it_is_known_what_runs,
            faults::failed_calls_are_tried_again,
            faults::lost_events_are_made_up_for_by_relisting,
            faults::doubled_events_change_nothing,
            faults::reordered_events_change_nothing,
            shutdown::pods_end_by_priority_and_come_back_when_the_machine_stays_up,
            shutdown::an_agent_restarted_during_a_shutdown_waits_for_logind,
            shutdown::a_logind_that_does_not_answer_delays_pods_only_briefly,
            shutdown::an_agent_that_is_stopped_during_a_shutdown_lets_pods_end,
            people::status_shows_pods_manifests_and_reasons,
            people::events_are_listed_and_followed,
            people::status_is_watched,
            people::logs_are_printed,
            people::commands_say_when_no_agent_runs,
            asked::a_person_restarts_a_pod_in_its_sandbox,
            asked::a_killed_agent_finishes_a_restart_once,
            asked::a_restart_that_is_asked_for_again_meanwhile_happens_once,
            asked::a_restart_is_shown_until_its_containers_have_stopped,
            asked::a_restart_does_not_wait_for_a_pull,
            asked::a_person_ends_the_back_offs_of_a_pod,
            stats::the_read_only_port_tells_and_changes_nothing,
            stats::the_status_page_is_printed,
            stats::ends_refusals_and_preemptions_are_counted,
            chaos::whatever_happens_all_ends_as_written,
            pressure::more_pods_than_the_node_takes_wait_for_room,
            pressure::a_pod_that_requests_too_much_is_refused,
            pressure::admission_goes_by_priority_and_critical_pods_preempt,
            pressure::signals_are_shown,
            damage::damaged_state_files_are_named_and_restart_nothing,
            damage::a_pod_stays_whose_manifest_is_broken_and_not_saved,
            damage::a_lost_owner_id_restarts_nothing,
            damage::node_conditions_are_saved_again_after_a_loss,
            writes::killed_around_every_state_file_write,
            writes::state_files_are_synced_before_and_after_their_rename,
            leftovers::leftovers_go_and_directories_of_running_pods_stay,
            lifecycle::pods_start_one_after_the_other_where_told,
        }
    };
}
pub(crate) use shared_scenarios;

/// Hands the list of the scenarios that need real processes to a macro.
macro_rules! real_scenarios {
    ($tier:ident) => {
        $tier! {
            faults::a_container_that_has_ended_and_runs_is_removed,
            fields::environment_and_command,
            fields::missing_limits_read_as_allocatable,
            fields::names_and_dns,
            fields::volumes,
            fields::security_context,
            objects::a_secret_broken_meanwhile_leaves_volumes_as_they_are,
            objects::projected_volumes_hold_what_all_their_sources_say,
            objects::a_volume_is_mounted_inside_a_volume_of_files,
            examples::edge_pods_run,
            fields::images_with_users_and_non_root_checks,
            looks::a_container_finds_what_its_manifest_says,
            looks::pods_differ_as_their_manifests_say,
            looks::host_ports_have_their_address_and_protocol,
            looks::files_and_variables_come_as_items_say,
            asks::requests_of_probes_and_hooks_are_as_written,
            asks::probes_keep_to_their_numbers,
            confinement::seccomp_profiles_are_in_force,
            confinement::seccomp_default_confines_what_names_no_profile,
            edits::a_mount_over_the_manifests_keeps_their_pods,
            propagation::a_mount_of_a_container_is_seen_where_it_is_to_be,
            propagation::a_mount_in_a_host_path_outlives_its_pod,
            propagation::a_mount_on_the_volume_itself_lets_containers_restart,
            restart_rules::exit_codes_decide_about_restarts,
            restart_rules::an_exit_code_restarts_all_containers,
            fields::resources_become_cgroups,
            resize::an_edit_of_cpu_and_memory_changes_what_runs,
            resize::a_memory_limit_below_use_waits,
            resize::a_resize_policy_restarts_its_container,
            resize::a_resize_in_a_crash_loop_reaches_the_pod,
            resize::an_agent_killed_during_a_resize_finishes_it,
            resize::a_resize_without_room_waits,
            runtime_class::a_class_chooses_the_handler,
            fields::host_namespaces,
            fields::addresses_of_the_node_are_followed,
            stuck::a_dead_file_system_delays_only_pods_that_use_it,
            dual_stack::pods_have_an_address_of_each_family,
            fields::a_host_port_leads_to_its_pod,
            fields::termination_messages,
            fields::logs_lie_where_shippers_look,
            log_rotation::no_line_is_lost_over_rotations,
            log_rotation::old_logs_are_compressed_and_the_oldest_go,
            log_rotation::a_rotation_without_an_answer_loses_no_line,
            log_rotation::all_logs_stay_below_their_total,
            images::pulls_from_a_registry_that_is_down_and_slow,
            images::pulls_with_a_password,
            fields::a_stopped_shim_holds_up_only_its_pod,
            hooks::a_post_start_hook_comes_before_the_next_container,
            hooks::a_container_whose_post_start_hook_fails_is_restarted,
            hooks::a_post_start_hook_that_never_ends_holds_up_no_removal,
            hooks::a_post_start_hook_that_never_ends_holds_up_no_restart,
            hooks::pre_stop_hooks_come_before_the_signal,
            hooks::a_bad_pre_stop_hook_keeps_no_pod,
            probes::a_probe_whose_children_go_on_has_timed_out,
            probes::probes_over_the_network,
            registry::each_pull_policy_asks_the_registry_as_often_as_it_says,
            registry::a_registry_that_is_down_is_asked_less_and_less,
            registry::a_pull_that_hangs_is_cancelled_with_its_manifest,
            registry::a_pull_that_trickles_arrives,
            registry::a_denied_image_does_not_start_from_the_copy_on_the_machine,
            registry::a_secret_of_the_pod_has_the_password_of_a_registry,
            credential_providers::a_plugin_has_the_password_of_a_registry,
            pull_records::an_image_of_a_secret_is_for_pods_with_its_credentials,
            pull_records::a_preloaded_image_is_for_every_pod_unless_all_are_verified,
            pull_records::an_agent_killed_in_a_pull_leaves_its_intent,
            stuck::a_stopped_shim_is_named_and_everything_else_goes_on,
            stuck::a_container_that_died_under_a_stopped_shim_is_restarted_once,
            disk::a_disk_without_space_stops_nothing,
            disk::a_disk_without_inodes_stops_nothing,
            disk::a_read_only_disk_stops_nothing,
            damage::what_cni_forgot_keeps_no_pod,
            pressure::a_memory_hog_goes_alone_and_comes_back_later,
            pressure::a_cgroup_of_all_pods_that_goes_away_is_made_again,
            memory_pressure::of_many_pods_those_that_eat_memory_go,
            memory_pressure::a_hard_threshold_cuts_short_the_time_of_a_soft_one,
            memory_restarts::who_still_goes_after_a_restart_is_waited_for,
            memory_restarts::a_hog_dies_while_the_runtime_hangs,
            memory_restarts::an_agent_killed_in_an_eviction_ends_it,
            memory_restarts::a_threshold_that_is_crossed_at_the_start_is_acted_on,
            memory_pressure::a_process_outside_pods_costs_no_pod_its_life,
            memory_pressure::memory_goes_by_the_configured_signal,
            memory_pressure::the_kernel_tells_that_tasks_wait_for_memory,
            pid_pressure::a_fork_bomb_affects_no_other_pod,
            disk_pressure::who_fills_the_disk_goes_alone,
            disk_pressure::with_images_apart_who_fills_their_disk_goes,
            disk_pressure::who_fills_a_disk_is_dead_in_time_while_the_runtime_hangs,
            disk_pressure::with_images_apart_inodes_have_their_own_culprit,
            disk_pressure::who_takes_all_inodes_goes_alone,
            disk_pressure::dead_containers_go_before_pods,
            disk_pressure::unused_images_go_before_pods,
            disk_pressure::a_disk_that_no_pod_fills_evicts_nobody,
            disk_pressure::a_disk_that_is_short_at_the_start_costs_its_culprit_alone,
            disk_pressure::limits_of_local_storage,
            image_collection::images_go_when_unused_for_the_maximum_age,
            image_collection::images_go_from_the_high_threshold_on,
            usage::what_a_pod_uses_is_measured,
            usage::the_machine_and_its_images_are_read,
            usage::a_stopped_shim_leaves_one_layer_unmeasured,
            copies::files_are_copied_both_ways,
            copies::a_hostile_archive_stays_in_its_destination,
            overtaken_stops::a_shutdown_shortens_the_stops_of_pods_that_end_anyway,
        }
    };
}
pub(crate) use real_scenarios;

/// Hands the list of the scenarios that no other tier has, for every version of containerd, to a
/// macro.
macro_rules! containerd_scenarios {
    ($tier:ident) => {
        $tier! {
            versions::the_version_is_told,
            image_volumes::an_image_is_mounted_where_the_runtime_can,
            propagation::mounts_within_a_volume_are_read_only_where_the_runtime_can,
            versions::ends_are_told_by_events,
            versions::ends_are_told_by_cri_events_where_there_are_any,
            daemon::killed_ten_times_under_thirty_pods,
            daemon::a_daemon_that_stands_still_restarts_nothing,
            daemon::a_socket_that_does_not_answer_yet_is_waited_for,
            disk::a_full_run_directory_stops_nothing,
            disk::a_full_disk_under_containerd_stops_nothing,
            sessions::a_command_runs_in_a_container,
            sessions::a_session_goes_with_its_client_and_its_container,
            sessions::ports_of_a_pod_are_reached,
            sessions::many_streams_leave_nothing_behind,
            stats::statistics_tell_what_a_pod_uses,
        }
    };
}
pub(crate) use containerd_scenarios;

/// Hands the list of those scenarios of the node tier in which versions of containerd may differ to
/// a macro: how sandboxes, networks and cgroups are made and removed, what is listed of them,
/// events, pulls, and what outlives agent and shim.
macro_rules! core_scenarios {
    ($tier:ident) => {
        $tier! {
            lifecycle::init_containers_and_sidecars_keep_their_order,
            lifecycle::jobs_run_to_their_end,
            lifecycle::nothing_is_done_when_nothing_changes,
            edits::an_edit_replaces_the_pod_after_the_old_one_is_gone,
            adoption::a_killed_agent_finds_its_pods_again,
            images::pull_policies_and_their_reasons,
            registry::a_pull_that_hangs_is_cancelled_with_its_manifest,
            registry::a_denied_image_does_not_start_from_the_copy_on_the_machine,
            fields::volumes,
            fields::resources_become_cgroups,
            fields::a_host_port_leads_to_its_pod,
            fields::termination_messages,
            runtime::a_dead_sandbox_is_replaced,
            runtime::pods_wait_for_the_network_and_host_network_pods_do_not,
            faults::lost_answers_make_no_doubles,
            faults::nothing_is_started_again_before_it_is_known_what_runs,
            faults::lost_events_are_made_up_for_by_relisting,
            faults::reordered_events_change_nothing,
            stuck::a_container_that_died_under_a_stopped_shim_is_restarted_once,
            overtaken_stops::a_removed_pod_does_not_wait_for_the_stop_of_a_container,
            usage::what_a_pod_uses_is_measured,
            usage::the_machine_and_its_images_are_read,
            usage::a_stopped_shim_leaves_one_layer_unmeasured,
        }
    };
}
pub(crate) use core_scenarios;
