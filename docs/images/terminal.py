"""Pictures of a terminal, with what the commands in them really print.

    .venv/bin/python docs/images/terminal.py            # all of them, from the root of the project
    .venv/bin/python docs/images/terminal.py mistakes   # one

Each command runs in a pseudo terminal of its own, as if it had been typed there; what it writes is
put on a screen of characters, as a terminal does it, so that a progress bar shows its last state.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

COLUMNS, LINES = 112, 60
SHOTS = {
    "run": [
        "mpi4dl bench spatial amoebanet --image-size 256 --num-layers 6 --num-filters 32"
        " --batch-size 2 --steps 6"
    ],
    "mistakes": [
        "mpirun -np 4 python benchmarks/spatial_parallelism/benchmark_amoebanet_sp.py"
        " --image-size 512",
        "mpi4dl bench layer resnet --balance 3,4",
        "mpi4dl bench halo exchange --slice-method 2x3",
    ],
    "halo": ["mpi4dl bench halo validate --image-size 512 --in-channels 16 --iterations 20"],
}
"""Name of the picture, and what is typed."""

INK, PAPER, PROMPT = (216, 219, 226), (24, 26, 31), (140, 200, 140)
PALETTE = (
    *((110, 116, 128), (224, 108, 117), (152, 195, 121), (229, 192, 123)),
    *((97, 175, 239), (198, 120, 221), (86, 182, 194), (235, 235, 235)),
)
Colour = tuple[int, int, int]


class Screen:
    """What is on a terminal: rows of characters with a colour each."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[str, Colour]]] = [[]]
        self._row, self._column, self._colour = 0, 0, INK

    def write(self, text: str, colour: Colour = INK) -> None:
        self._colour = colour
        for found in re.finditer(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b.|(.)", text, flags=re.S):
            numbers, command, character = found.groups()
            if character is not None:
                self._put(character)
            elif command is not None:
                self._control(command, [int(n) for n in re.findall(r"\d+", numbers)])

    def _put(self, character: str) -> None:
        if character == "\n":
            self._row += 1
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column == COLUMNS:
                self._row, self._column = self._row + 1, 0
            row = self._line()
            row += [(" ", INK)] * (self._column + 1 - len(row))
            row[self._column] = (character, self._colour)
            self._column += 1

    def _control(self, command: str, numbers: list[int]) -> None:
        count = numbers[0] if numbers else 0
        if command == "A":
            self._row = max(0, self._row - max(1, count))
        elif command == "K":
            del self._line()[self._column if count == 0 else 0 :]
        elif command == "m":
            for number in numbers or [0]:
                if number in (0, 39):
                    self._colour = INK
                elif number % 60 // 10 == 3:
                    self._colour = PALETTE[number % 10]

    def _line(self) -> list[tuple[str, Colour]]:
        while len(self.rows) <= self._row:
            self.rows.append([])
        return self.rows[self._row]


def typed(command: str) -> tuple[str, int]:
    """What a command writes to its terminal, and its exit code."""
    process, terminal = pty.fork()
    if process == 0:
        own = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
        os.environ.update(PATH=own, TERM="xterm", COLUMNS=str(COLUMNS))
        os.execvp("bash", ["bash", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # on Linux, how a terminal says that all who wrote to it have ended
            piece = b""
        if not piece:
            return written.decode(errors="replace"), os.waitstatus_to_exitcode(
                os.waitpid(process, 0)[1]
            )
        written += piece


def shot(commands: list[str]) -> Screen:
    screen = Screen()
    for command in commands:
        screen.write(f"$ {command}\r\n", PROMPT)
        output, code = typed(command)
        screen.write(output.rstrip() + "\r\n")
        if code:
            screen.write("$ echo $?\r\n", PROMPT)
            screen.write(f"{code}\r\n")
    return screen


def picture(screen: Screen, path: Path) -> None:
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(fonts / "DejaVuSansMono.ttf"), 15)
    width, height, edge = round(font.getlength("M")), 19, 16
    size = COLUMNS * width + 2 * edge, len(screen.rows) * height + 2 * edge
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    for number, row in enumerate(screen.rows):
        for column, (character, colour) in enumerate(row):
            where = edge + column * width, edge + number * height
            draw.text(where, character, font=font, fill=colour)
    image.quantize(32).save(path, optimize=True)


def main() -> None:
    for name in sys.argv[1:] or SHOTS:
        path = Path(__file__).with_name(f"terminal-{name}.png")
        picture(shot(SHOTS[name]), path)
        print(f"{path} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
