//! Credential provider plugins before a real registry that wants a password.

use crate::support::{
    agent::Settings,
    images::BUSYBOX,
    manifest::Pod,
    registry::{Registry, USER},
    world::{Kind, World},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

const NAME: &str = "busybox:pulled";
const OTHER: &str = "other:1";
/// base64 of `puller:secret` and of `puller:wrong`
const RIGHT: &str = "cHVsbGVyOnNlY3JldA==";
const WRONG: &str = "cHVsbGVyOndyb25n";
/// A password that nothing may ever show.
const HIDDEN: &str = "a-password-of-another-registry";
const TOKEN: &str = "a-token-in-the-environment";

/// A plugin that does what the file `mode` says, and counts its runs.
struct Plugin(PathBuf);

impl Plugin {
    fn write(dir: &Path, registry: &str) -> Self {
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).unwrap();
        let response = format!(
            "{{\"apiVersion\": \"credentialprovider.kubelet.k8s.io/v1\", \
             \"kind\": \"CredentialProviderResponse\", \"cacheKeyType\": \"Image\", \"auth\": {{\
             \"{registry}\": {{\"username\": \"{USER}\", \"password\": \"secret\"}}, \
             \"other.example.com\": {{\"username\": \"u\", \"password\": \"{HIDDEN}\"}}}}}}"
        );
        let script = format!(
            "#!/bin/sh\ncd {dir}\necho run >> runs\ncat > request\n\
             case $(cat mode) in\n\
             garbage) echo '{{{HIDDEN}'; echo {HIDDEN} >&2 ;;\n\
             fail) echo \"no token for $1 today\" >&2; exit 3 ;;\n\
             hang) echo $$ > pid; exec sleep 1000 ;;\n\
             *) echo '{response}' ;;\nesac\n",
            dir = dir.display()
        );
        let program = bin.join("plugin");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
             - name: plugin\n  matchImages: ['{registry}']\n  defaultCacheDuration: 1h\n  \
             apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [edge]\n  \
             env: [{{name: TOKEN, value: {TOKEN}}}]\n"
        );
        fs::write(dir.join("providers.yaml"), config).unwrap();
        Self(dir.to_path_buf())
    }

    fn set(&self, mode: &str) {
        fs::write(self.0.join("mode"), mode).unwrap();
    }

    fn runs(&self) -> usize {
        self.read("runs").lines().count()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// Whether the process that hangs is there.
    fn hangs(&self) -> bool {
        let pid = self.read("pid");
        !pid.is_empty() && Path::new("/proc").join(pid.trim()).exists()
    }
}

pub fn a_plugin_has_the_password_of_a_registry(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let Some(mut registry) = Registry::prepare(&world.slot) else { return };
    registry.start(false);
    registry.push(world.runtime.containerd(), BUSYBOX, NAME);
    registry.push(world.runtime.containerd(), BUSYBOX, OTHER);
    registry.stop();
    registry.start(true);
    let dir = world.slot.dir().join("plugin");
    let plugin = Plugin::write(&dir, &registry.address());
    let flag = |name: &str, file: &str| {
        world
            .agent
            .add_flag(format!("--image-credential-provider-{name}={}/{file}", dir.display()));
    };
    flag("config", "providers.yaml");
    flag("bin-dir", "bin");
    world.agent.start();
    let node_password = |base64: &str| {
        let address = registry.address();
        let config = format!("{{\"auths\":{{\"{address}\":{{\"auth\":\"{base64}\"}}}}}}");
        fs::write(world.agent.root_dir().join("config.json"), config).unwrap();
    };
    let pod = |name: &str, image: &str| {
        let image = registry.image(image);
        let pod = Pod::running(name).set("containers/0/image", image.as_str());
        world.drop_pod(&pod.set("containers/0/imagePullPolicy", "Always"));
    };

    // Whatever becomes of the plugin, the node's own password works.
    node_password(RIGHT);
    plugin.set("garbage");
    pod("first", NAME);
    world.wait_running("first");
    plugin.set("fail");
    pod("second", NAME);
    world.wait_running("second");
    let log = world.agent.log();
    for part in
        ["printed no CredentialProviderResponse", "exit status: 3): no token for edge today"]
    {
        assert!(log.contains(part), "{part}: {log}");
    }

    // The plugin alone has the password, and is asked once.
    node_password(WRONG);
    plugin.set("answer");
    pod("third", NAME);
    world.wait_running("third");
    pod("fourth", NAME);
    world.wait_running("fourth");
    assert_eq!(plugin.runs(), 3, "the answer is kept");
    let image = registry.image("busybox");
    assert!(plugin.read("request").contains(&format!("\"image\":\"{image}\"")), "without its tag");

    // A plugin that hangs delays its own image alone, and ends with its pod.
    plugin.set("hang");
    pod("hangs", OTHER);
    world.wait_until("the plugin hangs", || plugin.hangs(), |hangs| *hangs);
    pod("fifth", NAME);
    world.wait_running("fifth");
    assert!(plugin.hangs());
    world.remove("hangs.yaml");
    world.wait_gone("hangs");
    world.wait_until("the plugin is killed", || plugin.hangs(), |hangs| !*hangs);

    let log = world.agent.log();
    assert!(!log.contains(HIDDEN) && !log.contains(TOKEN) && !log.contains(RIGHT), "{log}");
    world.finish();
}
