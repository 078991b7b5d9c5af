"""Sliders over a picture: a function of a few values, and controls that call it again.

A `Control` says which values there are; `explore` turns them into ipywidgets where those can be imported,
and returns the picture of the first values where they cannot. So a lesson holds one line, and reads the same
on a page without a kernel: the object also shows itself as the picture.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workshop.facts.checks import check_choice
from workshop.show.drawing import Drawing
from workshop.show.style import Picture, new_figure

Still = Picture | Drawing
Draw = Callable[..., Still]

# ipywidgets makes the readout of every slider a field. Of one with choices it takes nothing: what is typed
# there only wipes the value out.
_SLIDER = "workshop-slider"
_LOOK = f"<style>.{_SLIDER} .widget-readout {{ pointer-events:none; -webkit-user-modify:read-only }}</style>"


@dataclass(frozen=True)
class Control:
    """One value that can be changed: its name in the function, its first value, and all it can be.

    Without choices it is a number that is typed.
    """

    name: str
    value: Any
    choices: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.choices:
            check_choice(self.name, self.value, self.choices)
        elif isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise ValueError(
                f"{self.name} has no choices, so it must be a number to type, not {self.value!r}"
            )


class Explorer:
    """Controls and the picture they draw. ``controls[name].value = x`` draws again, like moving the slider.

    ``picture`` is what is shown now; ``values`` are the controls' values.
    """

    def __init__(self, draw: Draw, controls: Sequence[Control]):
        import ipywidgets

        self.draw = draw
        self.controls = {control.name: _widget(control) for control in controls}
        self.image = ipywidgets.HTML()  # an Image has no alternative text, and is stretched
        self.words = ipywidgets.HTML()
        rows = ipywidgets.Layout(flex_flow="row wrap")
        self.box = ipywidgets.VBox(
            [ipywidgets.HBox(list(self.controls.values()), layout=rows), self.image, self.words]
        )
        for widget in self.controls.values():
            widget.observe(self._changed, names="value")
        self.picture: Still
        self._changed()

    @property
    def values(self) -> dict[str, Any]:
        """The controls' values by name."""
        return {name: widget.value for name, widget in self.controls.items()}

    def _changed(self, _change: Any = None) -> None:
        from html import escape

        self.picture = drawn(self.draw, self.values)
        if isinstance(self.picture, Drawing):
            self.image.value, below = self.picture.svg, ""  # its words stand in it
        else:
            self.image.value, below = self.picture.html, escape(self.picture.words)
        self.words.value = f"{_LOOK}<div style='line-height:1.4'>{below}</div>"

    def __repr__(self) -> str:
        return f"[sliders for {', '.join(self.controls)}: {self.picture.words}]"

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        """The widgets where they can live, the picture where they cannot (a saved page, a viewer)."""
        from base64 import b64encode

        shown = dict(self.box._repr_mimebundle_() or {})
        if isinstance(self.picture, Drawing):
            still = {"image/svg+xml": self.picture.svg}
        else:
            still = {"image/png": b64encode(self.picture._repr_png_()).decode()}
        return {**shown, **still, "text/plain": repr(self)}


def explore(draw: Draw, controls: Sequence[Control], widgets: bool | None = None) -> Explorer | Still:
    """Sliders over ``draw``, or its picture (or drawing) of the first values.

    widgets: False for the picture, True for sliders, None for sliders where ipywidgets is installed.
    ValueError for True without ipywidgets.
    """
    there = importlib.util.find_spec("ipywidgets") is not None
    if widgets and not there:
        raise ValueError(
            "widgets=True needs ipywidgets: pip install ipywidgets, or leave widgets out for a picture"
        )
    if there if widgets is None else widgets:
        return Explorer(draw, controls)
    return drawn(draw, {control.name: control.value for control in controls})


def drawn(draw: Draw, values: Mapping[str, Any]) -> Still:
    """The picture of some values; of values that do not go together, the sentence that says why."""
    try:
        return draw(**values)
    except ValueError as error:
        return sentence(str(error))


def sentence(text: str) -> Picture:
    """Words as a picture, in place of what cannot be drawn."""
    import textwrap

    wrapped = "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, 90))
    figure, axis = new_figure(7.0, 0.6 + 0.2 * wrapped.count("\n"))
    axis.axis("off")
    axis.text(0, 0.5, wrapped, va="center", fontsize=9)
    return Picture(figure, text)


def _widget(control: Control) -> Any:
    import ipywidgets

    name = control.name.replace("_", " ")
    look = {"description": name, "tooltip": name, "style": {"description_width": "initial"}}
    look["layout"] = {"max_width": "98%"}  # in a narrow window
    if not control.choices:
        return ipywidgets.FloatText(value=control.value, continuous_update=False, **look)
    options = [(_label(choice), choice) for choice in control.choices]
    if isinstance(control.value, str):
        return ipywidgets.Dropdown(options=options, value=control.value, **look)
    slider = ipywidgets.SelectionSlider(options=options, value=control.value, continuous_update=False, **look)
    slider.add_class(_SLIDER)
    return slider


def _label(choice: Any) -> str:
    if isinstance(choice, str):
        return choice
    return f"{choice:,}" if isinstance(choice, int) else f"{choice:g}"
