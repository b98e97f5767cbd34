//! Pods through a reboot.

use crate::{
    node::{Node, Options},
    support::manifest::Pod,
};

pub fn pods_come_back_after_a_reboot() {
    let node = Node::start(&Options::default());
    node.drop_pods(&[Pod::running("web")]);
    node.wait_running(&["web"]);
    node.reboot();
    node.wait_running(&["web"]);
    node.finish();
}
