//! The status page in a real browser, which reaches it as people do: through `kubectl proxy`.

use super::{
    controlplane::ControlPlane,
    kubelet_api::member,
    support::{
        agent::NODE_NAME,
        manifest::Pod,
        program,
        skips::skip_without,
        status::get,
        wait_until,
        world::{Kind, World, full_name},
    },
};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(60);

/// A program that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// `kubectl proxy`
struct Proxy {
    _process: Process,
    address: String,
}

impl Proxy {
    fn start(plane: &ControlPlane) -> Self {
        let arguments = ["proxy", "--port=0"];
        let mut process =
            plane.kubectl_command(&plane.admin_kubeconfig(), &arguments).spawn().unwrap();
        let mut line = String::new();
        let output = process.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        // `Starting to serve on 127.0.0.1:41234`
        let address = line.trim_end().rsplit(' ').next().unwrap().to_owned();
        Self { _process: Process(process), address }
    }

    /// Where the status page is.
    fn page(&self) -> String {
        format!("http://{}/api/v1/nodes/{NODE_NAME}/proxy/ui", self.address)
    }
}

/// A browser without a window.
struct Browser {
    program: PathBuf,
    profile: PathBuf,
}

impl Browser {
    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args([
            "--no-first-run",
            "--disable-background-networking",
            "--enable-logging=stderr",
        ]);
        command.arg(format!("--user-data-dir={}", self.profile.display())).args(more);
        command.env("HOME", &self.profile).stdin(Stdio::null());
        command
    }

    /// The document after its scripts have run for a while, and what the browser complains about.
    fn shows(&self, url: &str, more: &[&str]) -> (String, String) {
        let output = self.command(more).args(["--dump-dom", url]).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        let complaints = log.lines().filter(|line| line.contains("CONSOLE"));
        let complaints = complaints.collect::<Vec<_>>().join("\n");
        (String::from_utf8(output.stdout).unwrap(), complaints)
    }

    fn screenshot(&self, url: &str, more: &[&str], path: &Path) {
        let file = format!("--screenshot={}", path.display());
        let output = self.command(more).args(["--hide-scrollbars", &file, url]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(fs::metadata(path).unwrap().len() > 10_000, "{} is empty", path.display());
    }
}

/// How often the page was loaded.
fn loads(world: &World) -> f64 {
    let page = get(&world.agent.run_dir().join("nodelet.sock"), "/metrics").unwrap_or_default();
    let of_page = page.lines().find(|line| {
        line.starts_with("kubelet_http_requests_total{") && line.contains("path=\"ui\"")
    });
    of_page.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn a_browser_shows_the_status_page() {
    let chromium = program("chromium");
    if skip_without(&[(chromium.is_some(), "chromium (scripts/prerequisites test)")]) {
        return;
    }
    let Some((world, plane)) = member(Kind::Real) else { return };
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::with_main("unlucky", "exit 3"));
    world.wait_running("web");
    world.write("hostile.yaml", "kind: Pod\nmetadata: {name: \"<img src=x onerror=alert(1)>\"}\n");
    let proxy = Proxy::start(&plane);
    let profile = world.slot.dir().join("browser");
    let browser = Browser { program: chromium.unwrap(), profile };
    let node = format!("/api/v1/nodes/{NODE_NAME}/proxy/healthz");
    let healthy =
        || plane.admin.send(hyper::Method::GET, &node, None).is_ok_and(|a| a.status == 200);
    wait_until("the API server reaches the node", SOON, healthy, |ok| *ok);

    // With scripts the page loads itself again, and nothing is against its own policy.
    let (page, complaints) = browser.shows(&proxy.page(), &["--virtual-time-budget=12000"]);
    assert_eq!(complaints, "", "{page}");
    assert!(page.contains(&full_name("web")) && page.contains(&full_name("unlucky")), "{page}");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "{page}");
    assert!(!page.contains("<img") && !page.contains("Not up to date since 20"), "{page}");
    let loaded = loads(&world);
    assert!(loaded >= 3.0, "it was loaded {loaded} times");

    // Without them the browser loads it again, after 15 s.
    let before = loads(&world);
    let mut still =
        browser.command(&["--blink-settings=scriptEnabled=false", "--remote-debugging-port=0"]);
    let still = Process(still.arg(proxy.page()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it is loaded again", SOON, || loads(&world), |loads| *loads >= before + 2.0);
    drop(still);

    // A page that is open for half an hour says when the node does not answer any more.
    let before = loads(&world);
    let mut open = browser.command(&["--virtual-time-budget=2000000", "--dump-dom"]);
    let open = open.arg(proxy.page()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the page is open", SOON, || loads(&world), |loads| *loads >= before + 3.0);
    world.agent.kill();
    let page = String::from_utf8(open.wait_with_output().unwrap().stdout).unwrap();
    let lost = page.split("Not up to date since 20").nth(1);
    assert!(lost.is_some_and(|text| text.contains(": the node ")), "{page}");
    assert!(page.contains(&full_name("web")), "what was seen last stays: {page}");
    world.agent.start();

    for (name, size) in [("wide.png", "1200,1400"), ("phone.png", "412,1400")] {
        let path = world.slot.dir().join(name);
        browser.screenshot(&proxy.page(), &[&format!("--window-size={size}")], &path);
    }
    world.finish();
}
