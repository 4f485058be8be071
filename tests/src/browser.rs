//! A headless Chromium, driven through WebDriver: `chromedriver`, with JSON over plain HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::process::Process;

/// Maximum time for a browser to start, or to carry out a command.
const SOON: Duration = Duration::from_secs(60);

/// The preferred colour scheme of a page's viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `prefers-color-scheme: light`.
    Light,
    /// `prefers-color-scheme: dark`.
    Dark,
}

impl Scheme {
    /// Returns the name in CSS.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A browser with one page. Ended on drop.
#[derive(Debug)]
pub struct Browser {
    port: u16,
    session: String,
    // The driver ends the browser; the folder of the browser's profile goes last.
    driver: Process,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser without animations and without background connections.
    ///
    /// # Panics
    ///
    /// When `chromedriver` or `chromium` is missing or does not start.
    #[must_use]
    pub fn start() -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let mut args = vec![format!("--user-data-dir={}", profile.path().join("profile").display())];
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = Process::spawn(&mut command, Some(profile.path()))
            .expect("chromedriver starts: install Chromium and its driver");
        let port = started_on(driver.stdout().expect("its output is a pipe"));
        let mut browser = Self { port, session: String::new(), driver, _profile: profile };
        args.extend(
            [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--force-prefers-reduced-motion",
                "--hide-scrollbars",
            ]
            .map(str::to_owned),
        );
        let mut options = json!({ "args": args });
        if let Some(program) = chromium() {
            options["binary"] = json!(program);
        }
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let made = browser.call("POST", "/session", Some(&wanted));
        browser.session = made["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    /// Opens a page, and waits until it is loaded.
    pub fn open(&mut self, url: &str) {
        self.post("url", &json!({ "url": url }));
    }

    /// Sets the size of the page in CSS pixels. One CSS pixel is one pixel of a screenshot.
    pub fn size(&mut self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Sets the preferred colour scheme.
    pub fn scheme(&mut self, scheme: Scheme) {
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme.name() },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Runs a function body in the page, and returns its result.
    pub fn script(&mut self, body: &str) -> Value {
        self.post("execute/sync", &json!({ "script": body, "args": [] }))
    }

    /// Takes a screenshot of the page.
    pub fn shot(&mut self) -> Picture {
        let png = self.get("screenshot");
        let png = BASE64_STANDARD.decode(png.as_str().expect("a picture")).expect("base64");
        Picture::decode(png)
    }

    /// Returns the console messages since the last call: those of the page, and those of the
    /// browser about the page.
    pub fn console(&mut self) -> Vec<String> {
        let entries = self.post("se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().expect("a list");
        entries.iter().map(|entry| format!("{}: {}", entry["level"], entry["message"])).collect()
    }

    fn devtools(&mut self, command: &str, params: &Value) -> Value {
        self.post("goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    fn post(&mut self, what: &str, body: &Value) -> Value {
        let path = format!("/session/{}/{what}", self.session);
        self.call("POST", &path, Some(body))
    }

    fn get(&mut self, what: &str) -> Value {
        let path = format!("/session/{}/{what}", self.session);
        self.call("GET", &path, None)
    }

    /// Sends one command to the driver and returns the value of its answer.
    ///
    /// # Panics
    ///
    /// When the driver answers with an error; the panic contains its text.
    fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map(Value::to_string).unwrap_or_default();
        let (status, answer) = http(self.port, method, path, &body);
        let mut answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let value = answer["value"].take();
        assert!(status == 200, "{method} {path}: {status} {}: {}", value["error"], value["message"]);
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && self.driver.ended().is_none() && !std::thread::panicking() {
            self.call("DELETE", &format!("/session/{}", self.session), None);
        }
        self.driver.kill_tree();
    }
}

/// Returns the port that the driver has chosen.
fn started_on(output: ChildStdout) -> u16 {
    let mut output = BufReader::new(output);
    let mut line = String::new();
    let port = loop {
        line.clear();
        let read = output.read_line(&mut line).expect("text");
        assert!(read > 0, "chromedriver has ended before it listened");
        let (_, port) = line.rsplit_once("started successfully on port ").unwrap_or_default();
        if let Ok(port) = port.trim_end().trim_end_matches('.').parse() {
            break port;
        }
    };
    // Reads on: the driver would end when it writes to a closed pipe.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    port
}

/// Returns the browser's path. The driver looks for Chrome by itself, but not for every name of
/// Chromium.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    names
        .iter()
        .find_map(|name| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|at| at.is_file()))
}

/// Sends one request on a new connection, and returns the status and the body of the answer.
///
/// # Panics
///
/// When there is no readable answer.
#[must_use]
pub fn http(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.set_read_timeout(Some(SOON)).expect("a time-out");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("the server reads");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let mut next = |stream: &mut BufReader<TcpStream>| {
        line.clear();
        stream.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    };
    let status = next(&mut stream);
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let mut length = 0;
    loop {
        let header = next(&mut stream).to_ascii_lowercase();
        match header.split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().expect("a length"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a whole body");
    (status, String::from_utf8(body).expect("text"))
}

/// A rectangle of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Distance from the left.
    pub x: u32,
    /// Distance from the top.
    pub y: u32,
    /// Extent to the right.
    pub width: u32,
    /// Extent downwards.
    pub height: u32,
}

/// A screenshot.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The file, as the browser sent it.
    pub png: Vec<u8>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    colours: Vec<[u8; 3]>,
}

impl Picture {
    fn decode(png: Vec<u8>) -> Self {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(&png));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().expect("a PNG file");
        let mut bytes = vec![0; reader.output_buffer_size().expect("a picture that fits")];
        let info = reader.next_frame(&mut bytes).expect("a whole picture");
        let samples = info.color_type.samples();
        assert!(samples >= 3, "a picture in colours, not {:?}", info.color_type);
        let pixels = bytes[..info.buffer_size()].chunks_exact(samples);
        let colours = pixels.map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
        Self { png, width: info.width, height: info.height, colours }
    }

    /// Returns the share of `area` that has this colour, from 0 to 1. Edges are blended, so nearly
    /// equal colours count.
    #[must_use]
    pub fn share(&self, area: Area, colour: [u8; 3]) -> f64 {
        let mut hits = 0_u64;
        for y in area.y..area.y + area.height {
            for x in area.x..area.x + area.width {
                let pixel = self.colours[(y * self.width + x) as usize];
                hits += u64::from(pixel.iter().zip(colour).all(|(is, of)| is.abs_diff(of) <= 3));
            }
        }
        hits as f64 / f64::from(area.width * area.height).max(1.0)
    }

    /// Returns the number of different colours.
    #[must_use]
    pub fn colours(&self) -> usize {
        self.colours.iter().collect::<std::collections::HashSet<_>>().len()
    }
}
