"""A headless Chromium, driven over its two pipes: nothing but Python's own modules is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60


def find_browser():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. What it complains of (console, exceptions, failed loads) is collected in `complaints`."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()

        def place():  # the browser reads commands from 3 and answers to 4
            high = [os.dup2(end, 100 + end) for end in (to_browser, from_browser)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-dev-shm-usage", f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe"],
            pass_fds=(3, 4), preexec_fn=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.last = 0
        self.session = None
        self.events = []
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")  # its other processes end with it
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
        os.close(self.reader)
        os.close(self.writer)
        self.profile.cleanup()

    def call(self, method, **parameters):
        """Sends a command and returns its result."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        number = self.last
        answer = self.wait_for(lambda message: message.get("id") == number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait_for(self, is_it, what):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            while b"\0" in self.buffer:
                text, self.buffer = self.buffer.split(b"\0", 1)
                message = json.loads(text)
                self.note(message)
                if is_it(message):
                    return message
            if not select.select([self.reader], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"the browser gave no answer to {what} within {DEADLINE_S} s")
            piece = os.read(self.reader, 1 << 16)
            if not piece:
                raise RuntimeError(f"the browser ended, asked for {what}")
            self.buffer += piece

    def note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([argument.get("value") for argument in parameters["args"]]))
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])

    def show(self, path, width, theme):
        """Loads a file in a window so wide, and as high as the page, in the theme "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.resize(width, 800)
        os_path = "file://" + str(path)
        self.call("Page.navigate", url=os_path)
        self.wait_for(lambda message: message.get("method") == "Page.loadEventFired", f"loading {os_path}")
        self.resize(width, self.evaluate("Math.ceil(document.documentElement.scrollHeight || 800)"))

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"a script failed in the page: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path):
        """Writes what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
