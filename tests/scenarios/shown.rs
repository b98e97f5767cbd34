//! Which scenario shows that a field works. `docs/manifests.md` says "yes" of a field only when one
//! of these scenarios runs on a real containerd and its container, or the files of its cgroup, show
//! the effect. The tests below fail when a field has no scenario, when a row is about no field, and
//! when a scenario does not run.
//!
//! In a pattern `*` stands for any text. A field that has fields of its own is shown by them.

use nodelet::manifest::markdown;
use std::{fs, path::Path};

/// Of `spec.containers[]`.
const CONTAINER: &[(&str, &str)] = &[
    ("args[]", "fields::environment_and_command"),
    ("command[]", "fields::environment_and_command"),
    ("envFrom[].*", "looks::files_and_variables_come_as_items_say"),
    ("env[].name", "fields::environment_and_command"),
    ("env[].value", "fields::environment_and_command"),
    ("env[].valueFrom.*KeyRef.*", "looks::files_and_variables_come_as_items_say"),
    ("env[].valueFrom.fieldRef.apiVersion", "looks::a_container_finds_what_its_manifest_says"),
    ("env[].valueFrom.fieldRef.fieldPath", "fields::environment_and_command"),
    (
        "env[].valueFrom.resourceFieldRef.containerName",
        "looks::a_container_finds_what_its_manifest_says",
    ),
    ("env[].valueFrom.resourceFieldRef.divisor", "fields::environment_and_command"),
    ("env[].valueFrom.resourceFieldRef.resource", "fields::environment_and_command"),
    ("image", "fields::images_with_users_and_non_root_checks"),
    ("lifecycle.postStart.exec.*", "hooks::a_post_start_hook_comes_before_the_next_container"),
    ("lifecycle.preStop.exec.*", "hooks::pre_stop_hooks_come_before_the_signal"),
    ("lifecycle.*.httpGet.*", "asks::requests_of_probes_and_hooks_are_as_written"),
    ("lifecycle.*.sleep.*", "asks::requests_of_probes_and_hooks_are_as_written"),
    ("livenessProbe.exec.*", "probes::a_failed_liveness_probe_restarts_its_container"),
    ("readinessProbe.exec.*", "probes::readiness_follows_its_command"),
    ("startupProbe.exec.*", "probes::other_probes_wait_for_the_startup_probe"),
    ("livenessProbe.failureThreshold", "probes::a_failed_liveness_probe_restarts_its_container"),
    ("readinessProbe.failureThreshold", "probes::readiness_follows_its_command"),
    ("startupProbe.failureThreshold", "probes::other_probes_wait_for_the_startup_probe"),
    ("*Probe.grpc.*", "asks::requests_of_probes_and_hooks_are_as_written"),
    ("*Probe.httpGet.*", "asks::requests_of_probes_and_hooks_are_as_written"),
    ("*Probe.tcpSocket.*", "asks::requests_of_probes_and_hooks_are_as_written"),
    ("*Probe.initialDelaySeconds", "asks::probes_keep_to_their_numbers"),
    ("*Probe.periodSeconds", "asks::probes_keep_to_their_numbers"),
    ("*Probe.successThreshold", "asks::probes_keep_to_their_numbers"),
    ("*Probe.terminationGracePeriodSeconds", "asks::probes_keep_to_their_numbers"),
    ("*Probe.timeoutSeconds", "asks::probes_keep_to_their_numbers"),
    ("name", "lifecycle::a_dropped_manifest_runs"),
    ("ports[].containerPort", "fields::a_host_port_leads_to_its_pod"),
    ("ports[].hostIP", "looks::host_ports_have_their_address_and_protocol"),
    ("ports[].hostPort", "fields::a_host_port_leads_to_its_pod"),
    ("ports[].name", "probes::probes_over_the_network"),
    ("ports[].protocol", "looks::host_ports_have_their_address_and_protocol"),
    ("resizePolicy[].*", "resize::a_resize_policy_restarts_its_container"),
    ("restartPolicy", "restart_rules::exit_codes_decide_about_restarts"),
    ("restartPolicyRules[].*", "restart_rules::exit_codes_decide_about_restarts"),
    ("securityContext.allowPrivilegeEscalation", "fields::security_context"),
    ("securityContext.capabilities.*", "looks::a_container_finds_what_its_manifest_says"),
    ("securityContext.privileged", "fields::security_context"),
    ("securityContext.readOnlyRootFilesystem", "fields::security_context"),
    ("securityContext.runAsGroup", "looks::a_container_finds_what_its_manifest_says"),
    ("securityContext.runAsNonRoot", "fields::images_with_users_and_non_root_checks"),
    ("securityContext.runAsUser", "looks::a_container_finds_what_its_manifest_says"),
    ("securityContext.seccompProfile.*", "confinement::seccomp_profiles_are_in_force"),
    ("stdin", "looks::a_container_finds_what_its_manifest_says"),
    ("terminationMessagePath", "fields::termination_messages"),
    ("terminationMessagePolicy", "fields::termination_messages"),
    ("tty", "looks::a_container_finds_what_its_manifest_says"),
    ("volumeMounts[].mountPath", "fields::volumes"),
    (
        "volumeMounts[].mountPropagation",
        "propagation::a_mount_of_a_container_is_seen_where_it_is_to_be",
    ),
    ("volumeMounts[].name", "fields::volumes"),
    ("volumeMounts[].readOnly", "fields::volumes"),
    ("volumeMounts[].subPath", "fields::volumes"),
    ("volumeMounts[].subPathExpr", "looks::a_container_finds_what_its_manifest_says"),
    ("workingDir", "looks::a_container_finds_what_its_manifest_says"),
];

/// Of everything else, by its whole path.
const POD: &[(&str, &str)] = &[
    ("apiVersion", "lifecycle::a_dropped_manifest_runs"),
    ("kind", "lifecycle::a_dropped_manifest_runs"),
    ("metadata.labels", "lifecycle::a_dropped_manifest_runs"),
    ("metadata.namespace", "looks::a_container_finds_what_its_manifest_says"),
    ("spec.activeDeadlineSeconds", "lifecycle::a_pod_past_its_deadline_is_ended"),
    ("spec.affinity.*", "looks::pods_differ_as_their_manifests_say"),
    ("spec.dnsConfig.*", "looks::pods_differ_as_their_manifests_say"),
    ("spec.dnsPolicy", "looks::pods_differ_as_their_manifests_say"),
    ("spec.hostAliases[].*", "fields::names_and_dns"),
    ("spec.hostIPC", "fields::host_namespaces"),
    ("spec.hostNetwork", "fields::host_namespaces"),
    ("spec.hostPID", "fields::host_namespaces"),
    ("spec.hostname", "fields::names_and_dns"),
    ("spec.hostnameOverride", "looks::pods_differ_as_their_manifests_say"),
    ("spec.imagePullSecrets[].*", "registry::a_secret_of_the_pod_has_the_password_of_a_registry"),
    ("spec.initContainers[]", "lifecycle::init_containers_and_sidecars_keep_their_order"),
    ("spec.nodeSelector", "looks::pods_differ_as_their_manifests_say"),
    ("spec.os.*", "looks::a_container_finds_what_its_manifest_says"),
    ("spec.overhead", "looks::pods_differ_as_their_manifests_say"),
    ("spec.priority", "pressure::admission_goes_by_priority_and_critical_pods_preempt"),
    ("spec.readinessGates[].*", "looks::pods_differ_as_their_manifests_say"),
    ("spec.restartPolicy", "lifecycle::jobs_run_to_their_end"),
    ("spec.securityContext.fsGroup", "fields::security_context"),
    ("spec.securityContext.runAsGroup", "looks::a_container_finds_what_its_manifest_says"),
    ("spec.securityContext.runAsNonRoot", "fields::images_with_users_and_non_root_checks"),
    ("spec.securityContext.runAsUser", "looks::a_container_finds_what_its_manifest_says"),
    ("spec.securityContext.seccompProfile.*", "confinement::seccomp_profiles_are_in_force"),
    ("spec.securityContext.supplementalGroups[]", "fields::security_context"),
    ("spec.securityContext.sysctls[].*", "looks::a_container_finds_what_its_manifest_says"),
    ("spec.setHostnameAsFQDN", "looks::a_container_finds_what_its_manifest_says"),
    ("spec.shareProcessNamespace", "fields::host_namespaces"),
    ("spec.subdomain", "looks::a_container_finds_what_its_manifest_says"),
    (
        "spec.terminationGracePeriodSeconds",
        "adoption::a_manifest_removed_meanwhile_ends_its_pod_with_its_own_grace",
    ),
    ("spec.tolerations[].*", "memory_pressure::memory_goes_by_the_configured_signal"),
    ("spec.volumes[].configMap.*", "looks::files_and_variables_come_as_items_say"),
    ("spec.volumes[].downwardAPI.*", "looks::files_and_variables_come_as_items_say"),
    ("spec.volumes[].emptyDir.medium", "fields::volumes"),
    ("spec.volumes[].hostPath.path", "fields::volumes"),
    ("spec.volumes[].hostPath.type", "looks::files_and_variables_come_as_items_say"),
    ("spec.volumes[].name", "fields::volumes"),
    ("spec.volumes[].projected.*", "looks::files_and_variables_come_as_items_say"),
    ("spec.volumes[].secret.*", "looks::files_and_variables_come_as_items_say"),
];

/// What no container of the node tier can show: the test that shows it or looks at the request, its
/// file, and the reason.
const ELSEWHERE: &[(&str, &str, &str, &str)] = &[
    (
        "*.seLinuxOptions.*",
        "a_full_container",
        "src/cri/to_cri/tests.rs",
        "the kernels of the tests have no SELinux",
    ),
    (
        "*.appArmorProfile.*",
        "app_armor_profiles_are_asked_for_or_refused",
        "tests/component.rs",
        "the kernel of the build machine has no AppArmor",
    ),
    (
        "spec.containers[].volumeMounts[].recursiveReadOnly",
        "mounts_within_a_volume_are_read_only_where_the_runtime_can",
        "tests/scenarios/mod.rs",
        "needs containerd 2, which is not the installed one",
    ),
    (
        "spec.volumes[].emptyDir.medium",
        "an_empty_dir_lies_on_huge_pages",
        "tests/machine/drivers.rs",
        "huge pages take memory that other tests on the build machine count on",
    ),
    (
        "spec.volumes[].image.*",
        "an_image_is_mounted_where_the_runtime_can",
        "tests/scenarios/mod.rs",
        "needs containerd 2.1, which is not the installed one",
    ),
    (
        "spec.volumes[].nfs.*",
        "a_server_that_is_down_holds_up_its_own_pods_alone",
        "tests/machine/nfs.rs",
        "the kernel of the build machine has no NFS",
    ),
    (
        "spec.containers[].stdinOnce",
        "requests_are_the_kubelets",
        "tests/parity/main.rs",
        "it has an effect on clients that attach to the container, and nothing attaches",
    ),
    (
        "spec.securityContext.supplementalGroupsPolicy",
        "groups_of_the_image_count_unless_the_policy_is_strict",
        "tests/containerds.rs",
        "needs containerd 2, which is not the installed one",
    ),
    (
        "spec.containers[].securityContext.procMount",
        "a_pod_has_ids_of_its_own",
        "tests/containerds.rs",
        "`Unmasked` needs a user namespace",
    ),
];

/// The documented fields: whole path, and what the table says of it.
fn documented() -> Vec<(String, String)> {
    let mut section = String::new();
    let mut rows = Vec::new();
    for line in markdown().lines() {
        if let Some(title) = line.strip_prefix("## ") {
            let prefix = title.split('`').nth(1);
            section = prefix.map(|prefix| format!("{prefix}.")).unwrap_or_default();
        }
        let row = line.strip_prefix("| `").and_then(|row| row.split_once("` | "));
        if let Some((path, rest)) = row {
            let verdict = rest.split(' ').next().unwrap();
            rows.push((format!("{section}{path}"), verdict.to_owned()));
        }
    }
    rows
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            places.any(|at| fits(rest, &text[at..]))
        }),
    }
}

fn source(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Patterns of whole paths, each with what shows it.
fn shown() -> impl Iterator<Item = (String, &'static str)> {
    let container = CONTAINER.iter().map(|(path, by)| (format!("spec.containers[].{path}"), *by));
    let pod = POD.iter().map(|(path, by)| ((*path).to_owned(), *by));
    let elsewhere = ELSEWHERE.iter().map(|(path, by, ..)| ((*path).to_owned(), *by));
    container.chain(pod).chain(elsewhere)
}

#[test]
fn every_field_that_works_is_shown_to_work() {
    let documented = documented();
    let has_fields = |path: &str| {
        let inner = format!("{path}.");
        documented.iter().any(|(other, _)| other.starts_with(&inner))
    };
    let works: Vec<&String> = documented
        .iter()
        .filter(|(path, verdict)| verdict == "yes" && !has_fields(path))
        .map(|(path, _)| path)
        .collect();
    assert!(works.len() > 200, "the table is not understood: {works:?}");
    let patterns: Vec<(String, &str)> = shown().collect();
    let unshown: Vec<_> = works
        .iter()
        .filter(|path| !patterns.iter().any(|(pattern, _)| fits(pattern, path)))
        .collect();
    assert!(unshown.is_empty(), "no scenario shows: {unshown:#?}");
    let idle: Vec<_> = patterns
        .iter()
        .filter(|(pattern, _)| !works.iter().any(|path| fits(pattern, path)))
        .collect();
    assert!(idle.is_empty(), "about no field that works: {idle:#?}");
}

#[test]
fn every_scenario_that_shows_a_field_runs_on_containerd() {
    let lists = source("tests/scenarios/mod.rs");
    let real = lists.split("macro_rules! containerd_scenarios").next().unwrap();
    let runs = |by: &str| real.lines().any(|line| line.trim() == format!("{by},"));
    let absent: Vec<_> = CONTAINER.iter().chain(POD).filter(|(_, by)| !runs(by)).collect();
    assert!(absent.is_empty(), "no such scenario: {absent:#?}");
    for (_, test, file, _) in ELSEWHERE {
        assert!(source(file).contains(test), "{test} is not in {file}");
    }
}
