//! A Chromium without a window, to show what a web page can do. What the page finds out it must
//! send somewhere itself: a browser only shows.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::place::Place;
use crate::programs::{Missing, on_path, or_skip};

pub struct Chromium {
    program: PathBuf,
}

/// One open page; the browser ends when this goes out of scope.
pub struct OpenPage {
    child: Child,
    /// Its profile, which is removed with it.
    _place: Place,
}

impl Chromium {
    /// `None`, after a loud word, where the program is missing and not required.
    pub fn find_or_skip(test: &str) -> Option<Self> {
        or_skip(test, "Chromium", Self::missing(), || Self {
            program: on_path("chromium").expect("it was there a moment ago"),
        })
    }

    /// Opens a page in a browser of its own. `hosts` are rules such as
    /// `MAP shop.example 127.0.0.1`, which stand for a name server.
    pub fn open(&self, url: &str, hosts: &[String]) -> OpenPage {
        let place = Place::new("chromium");
        let profile = place.path().join("profile");
        let child = Command::new(&self.program)
            // Tests run as root, where its own sandbox cannot.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-quic", "--no-proxy-server"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("--host-resolver-rules={}", hosts.join(", ")))
            // Keeps the page open.
            .arg("--remote-debugging-port=0")
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Chromium can be started");
        OpenPage { child, _place: place }
    }

    fn missing() -> Option<Missing> {
        on_path("chromium").err()
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        // Its other processes end when the first has.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
