//! Speaks just enough of Kafka's protocol to ask whether a broker is ready and to create a topic.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// A paused broker accepts connections and never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const LEADER_DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Far above any answer about one node and one topic.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const METADATA: (u16, u16) = (3, 1);
const CREATE_TOPICS: (u16, u16) = (19, 2);
const CREATE_TIMEOUT_MS: u32 = 30_000;
const NO_NODE: i32 = -1;

/// Ready is a broker that names itself and a controller in its metadata.
pub fn ask_if_ready(port: u16) -> Result<(), String> {
    let mut answer = metadata(port, &[]).map_err(|error| error.to_string())?;
    let (brokers, controller) = nodes(&mut answer).map_err(|error| error.to_string())?;
    if brokers > 0 && controller != NO_NODE {
        Ok(())
    } else {
        Err(format!("it names {brokers} brokers and controller {controller}"))
    }
}

pub fn create_topic(
    port: u16,
    name: &str,
    partitions: u16,
    settings: &[(&str, &str)],
) -> Result<(), String> {
    let mut request = Vec::new();
    put_length(&mut request, 1);
    put_text(&mut request, name);
    put_length(&mut request, usize::from(partitions));
    // One replica, and no assignment by hand.
    request.extend(1_u16.to_be_bytes());
    put_length(&mut request, 0);
    put_length(&mut request, settings.len());
    for (setting, value) in settings {
        put_text(&mut request, setting);
        put_text(&mut request, value);
    }
    request.extend(CREATE_TIMEOUT_MS.to_be_bytes());
    // Not only validated.
    request.push(0);
    let created = ask(port, CREATE_TOPICS, &request).and_then(|mut answer| {
        let _throttled_ms = answer.number()?;
        let _topics = answer.number()?;
        answer.text()?;
        Ok((answer.short()?, answer.text()?))
    });
    match created {
        Ok((0, _)) => wait_for_leaders(port, name, partitions),
        Ok((code, message)) => Err(format!("error {code}: {}", message.unwrap_or_default())),
        Err(error) => Err(error.to_string()),
    }
}

fn wait_for_leaders(port: u16, topic: &str, partitions: u16) -> Result<(), String> {
    let deadline = Instant::now() + LEADER_DEADLINE;
    loop {
        let led = metadata(port, &[topic]).and_then(led_partitions);
        match led {
            Ok(led) if led == usize::from(partitions) => return Ok(()),
            _ if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(led) => return Err(format!("{led} of {partitions} partitions have a leader")),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn metadata(port: u16, topics: &[&str]) -> io::Result<Answer> {
    let mut request = Vec::new();
    put_length(&mut request, topics.len());
    for topic in topics {
        put_text(&mut request, topic);
    }
    ask(port, METADATA, &request)
}

/// How many brokers, and which of them is the controller.
fn nodes(answer: &mut Answer) -> io::Result<(i32, i32)> {
    let brokers = answer.number()?;
    for _ in 0..brokers {
        let _id = answer.number()?;
        let _host = answer.text()?;
        let _port = answer.number()?;
        let _rack = answer.text()?;
    }
    Ok((brokers, answer.number()?))
}

/// How many partitions of the one topic asked for have a leader.
fn led_partitions(mut answer: Answer) -> io::Result<usize> {
    nodes(&mut answer)?;
    let _topics = answer.number()?;
    let _error = answer.short()?;
    let _name = answer.text()?;
    let _internal = answer.take(1)?;
    let mut led = 0;
    for _ in 0..answer.number()? {
        let error = answer.short()?;
        let _index = answer.number()?;
        let leader = answer.number()?;
        if error == 0 && leader != NO_NODE {
            led += 1;
        }
        for _nodes in ["replicas", "replicas in sync"] {
            let count = answer.number()?;
            for _ in 0..count {
                answer.number()?;
            }
        }
    }
    Ok(led)
}

/// Sends one request of a (key, version) and gives what follows the answer's header.
fn ask(port: u16, (key, version): (u16, u16), request: &[u8]) -> io::Result<Answer> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut content = key.to_be_bytes().to_vec();
    content.extend(version.to_be_bytes());
    // The number that ties an answer to its request: there is only one.
    put_length(&mut content, 0);
    put_text(&mut content, "guanxi-services");
    content.extend(request);
    let mut message = Vec::new();
    put_length(&mut message, content.len());
    message.extend(content);
    stream.write_all(&message)?;

    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(io::Error::other(format!("an answer of {length} bytes")));
    }
    let mut answer = Answer { content: vec![0; length], read: 0 };
    stream.read_exact(&mut answer.content)?;
    answer.number()?;
    Ok(answer)
}

struct Answer {
    content: Vec<u8>,
    read: usize,
}

impl Answer {
    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        let begin = self.read;
        self.read += length;
        let taken = self.content.get(begin..self.read);
        taken.ok_or_else(|| io::Error::other("an answer that is too short"))
    }

    fn short(&mut self) -> io::Result<i16> {
        let bytes = self.take(2)?;
        Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn number(&mut self) -> io::Result<i32> {
        let bytes = self.take(4)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// `None` where the length says null.
    fn text(&mut self) -> io::Result<Option<String>> {
        let Ok(length) = usize::try_from(self.short()?) else {
            return Ok(None);
        };
        Ok(Some(String::from_utf8_lossy(self.take(length)?).into_owned()))
    }
}

fn put_length(message: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("requests are short");
    message.extend(length.to_be_bytes());
}

fn put_text(message: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).expect("names are short");
    message.extend(length.to_be_bytes());
    message.extend(text.as_bytes());
}
