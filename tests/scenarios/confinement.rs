//! seccomp and AppArmor profiles.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    process::Process,
    skips,
    world::{Kind, World},
};
use nodelet::cri::v1;
use serde_json::{Value, json};
use std::fs;

/// Refuses new directories, and nothing else.
fn no_directories() -> String {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }],
    })
    .to_string()
}

fn localhost(file: &str) -> Value {
    json!({ "type": "Localhost", "localhostProfile": file })
}

/// Tries to make a directory.
fn tries(name: &str) -> Pod {
    Pod::with_main(name, &format!("mkdir /made; touch /tried; {FOREVER}"))
}

/// The seccomp mode of a container (0: none, 2: a filter), and whether it could make a directory.
#[track_caller]
fn confined(world: &World, pod: &str) -> (String, bool) {
    let process = Process::of(world, pod, "main");
    let tried = || process.path("/tried").exists();
    world.wait_until("it has tried", tried, |tried| *tried);
    (process.status("Seccomp"), process.path("/made").exists())
}

pub fn seccomp_profiles_are_in_force(kind: Kind) {
    let world = World::start(kind);
    let profiles = world.agent.root_dir().join("seccomp/profiles");
    fs::create_dir_all(&profiles).unwrap();
    fs::write(profiles.join("no-directories.json"), no_directories()).unwrap();
    let of_pod = "securityContext/seccompProfile";
    let of_main = "containers/0/securityContext/seccompProfile";
    let plain = |kind: &str| json!({ "type": kind });
    let local = || localhost("profiles/no-directories.json");
    let (none, filter) = (("0".to_owned(), true), ("2".to_owned(), true));
    let refuses = ("2".to_owned(), false);
    let pods = [
        (tries("unset"), &none),
        (tries("unconfined").set(of_main, plain("Unconfined")), &none),
        (tries("default").set(of_main, plain("RuntimeDefault")), &filter),
        (tries("local").set(of_main, local()), &refuses),
        (tries("of-pod").set(of_pod, local()), &refuses),
        (tries("own").set(of_pod, local()).set(of_main, plain("RuntimeDefault")), &filter),
        (tries("free").set(of_pod, local()).set(of_main, plain("Unconfined")), &none),
    ];
    for (pod, _) in &pods {
        world.drop_pod(pod);
    }
    for (pod, expected) in &pods {
        let name = pod.value()["metadata"]["name"].as_str().unwrap();
        world.wait_running(name);
        assert_eq!(&confined(&world, name), *expected, "{name}");
    }

    // A profile that is not there is named, and nothing runs without it.
    world.drop_pod(&tries("late").set(of_main, localhost("profiles/late.json")));
    world.wait("the missing profile is named", |status| {
        let failed = ["CreateContainerError", "CreateContainerConfigError", "RunContainerError"];
        failed.contains(&status.waiting_reason("late", "main"))
            && status.has_event("Failed", "profiles/late.json")
    });
    assert!(world.running_ids("late").is_empty());
    fs::write(profiles.join("late.json"), no_directories()).unwrap();
    world.wait_running("late");
    assert_eq!(confined(&world, "late"), refuses);
    world.finish();
}

pub fn seccomp_default_confines_what_names_no_profile(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet("seccompDefault: true\n");
    let world = World::start_with(kind, &settings);
    let context = |value| ("containers/0/securityContext", value);
    let (unconfined, privileged) = (
        context(json!({ "seccompProfile": { "type": "Unconfined" } })),
        context(json!({ "privileged": true })),
    );
    world.drop_pod(&tries("unset"));
    world.drop_pod(&tries("unconfined").set(unconfined.0, unconfined.1));
    world.drop_pod(&tries("privileged").set(privileged.0, privileged.1));
    for (name, mode) in [("unset", "2"), ("unconfined", "0"), ("privileged", "0")] {
        world.wait_running(name);
        assert_eq!(confined(&world, name), (mode.to_owned(), true), "{name}");
    }
    world.finish();
}

/// What the runtime is asked for; where the kernel has no AppArmor, a pod that asks for a profile is
/// refused. As root both kernels are looked at, else the one that is there.
pub fn app_armor_profiles_are_asked_for_or_refused(kind: Kind) {
    let module = "/sys/module/apparmor/parameters/enabled";
    let there = fs::read_to_string(module).is_ok_and(|text| text.starts_with('Y'));
    let kernels = if skips::root().0 { vec![false, true] } else { vec![there] };
    for enforces in kernels {
        let world = World::prepare(kind, &Settings::for_kind(kind));
        if skips::root().0 {
            world.agent.on_kernel_with_app_armor(enforces);
        }
        world.agent.start();
        let pod = |name: &str, profile: Value| {
            Pod::running(name).set("containers/0/securityContext/appArmorProfile", profile)
        };
        world.drop_pod(&pod("default", json!({ "type": "RuntimeDefault" })));
        world.drop_pod(&pod("local", localhost("nodelet-test")));
        world.drop_pod(&pod("free", json!({ "type": "Unconfined" })));
        let confined = ["default", "local"];
        world.wait_running("free");
        if enforces {
            for name in confined {
                world.wait_running(name);
            }
        } else {
            let status = world.wait("who asks for a profile is refused", |status| {
                let reason = |name: &str| status.pod(name)?.status.reason.clone();
                confined.iter().all(|name| reason(name).as_deref() == Some("AppArmor"))
            });
            let message = status.pod("local").unwrap().status.message.clone().unwrap();
            assert!(message.contains("AppArmor is not enabled on the host"), "{message}");
        }
        let asked = |name: &str| {
            let calls = world.proxy.mutating_calls();
            let create = calls.iter().find(|c| c.method == "CreateContainer" && c.is_for(name))?;
            let config = create.request::<v1::CreateContainerRequest>().config?;
            let context = config.linux?.security_context?;
            #[allow(deprecated, reason = "older runtimes read the text form only")]
            let text = context.apparmor_profile;
            context.apparmor.map(|profile| (profile.profile_type(), profile.localhost_ref, text))
        };
        use v1::security_profile::ProfileType;
        let expected = |kind: ProfileType, file: &str, text: &str| {
            Some((kind, file.to_owned(), text.to_owned()))
        };
        let default = expected(ProfileType::RuntimeDefault, "", "runtime/default");
        let local = expected(ProfileType::Localhost, "nodelet-test", "localhost/nodelet-test");
        assert_eq!(asked("default"), default.filter(|_| enforces));
        assert_eq!(asked("local"), local.filter(|_| enforces));
        assert_eq!(asked("free"), expected(ProfileType::Unconfined, "", "unconfined"));
        world.finish();
    }
}
