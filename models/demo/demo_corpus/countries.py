"""The table of countries, capitals and continents that the demo model learns by heart."""

from typing import NamedTuple


class Country(NamedTuple):
    """A row of the table."""

    name: str  # as it stands inside a sentence, with its article ("the Netherlands")
    capital: str
    continent: str


_EUROPE = """
Albania=Tirana|Andorra=Andorra la Vella|Austria=Vienna|Belarus=Minsk|Belgium=Brussels
Bosnia and Herzegovina=Sarajevo|Bulgaria=Sofia|Croatia=Zagreb|Cyprus=Nicosia
the Czech Republic=Prague|Denmark=Copenhagen|Estonia=Tallinn|Finland=Helsinki|France=Paris
Germany=Berlin|Greece=Athens|Hungary=Budapest|Iceland=Reykjavik|Ireland=Dublin|Italy=Rome
Kosovo=Pristina|Latvia=Riga|Liechtenstein=Vaduz|Lithuania=Vilnius
Luxembourg=Luxembourg City|Malta=Valletta|Moldova=Chisinau|Monaco=Monaco
Montenegro=Podgorica|the Netherlands=Amsterdam|North Macedonia=Skopje
Norway=Oslo|Poland=Warsaw|Portugal=Lisbon|Romania=Bucharest|Russia=Moscow|San Marino=San Marino
Serbia=Belgrade
Slovakia=Bratislava|Slovenia=Ljubljana|Spain=Madrid|Sweden=Stockholm|Switzerland=Bern
Ukraine=Kyiv|the United Kingdom=London|Vatican City=Vatican City
"""
_ASIA = """
Afghanistan=Kabul|Armenia=Yerevan|Azerbaijan=Baku|Bahrain=Manama|Bangladesh=Dhaka
Bhutan=Thimphu|Brunei=Bandar Seri Begawan|Cambodia=Phnom Penh|China=Beijing|Georgia=Tbilisi
India=New Delhi|Indonesia=Jakarta|Iran=Tehran|Iraq=Baghdad|Israel=Jerusalem|Japan=Tokyo
Jordan=Amman|Kazakhstan=Astana|Kuwait=Kuwait City|Kyrgyzstan=Bishkek|Laos=Vientiane
Lebanon=Beirut|Malaysia=Kuala Lumpur|the Maldives=Male|Mongolia=Ulaanbaatar
Myanmar=Naypyidaw|Nepal=Kathmandu|North Korea=Pyongyang|Oman=Muscat|Pakistan=Islamabad
Palestine=Ramallah|the Philippines=Manila|Qatar=Doha
Saudi Arabia=Riyadh|Singapore=Singapore|South Korea=Seoul
Sri Lanka=Sri Jayawardenepura Kotte|Syria=Damascus|Taiwan=Taipei|Tajikistan=Dushanbe
Thailand=Bangkok|East Timor=Dili|Turkey=Ankara|Turkmenistan=Ashgabat
the United Arab Emirates=Abu Dhabi|Uzbekistan=Tashkent|Vietnam=Hanoi|Yemen=Sanaa
"""
_AFRICA = """
Algeria=Algiers|Angola=Luanda|Benin=Porto-Novo|Botswana=Gaborone|Burkina Faso=Ouagadougou
Burundi=Gitega|Cameroon=Yaounde|Cape Verde=Praia|the Central African Republic=Bangui
Chad=N'Djamena|the Comoros=Moroni|the Democratic Republic of the Congo=Kinshasa
the Republic of the Congo=Brazzaville|Djibouti=Djibouti City|Egypt=Cairo
Equatorial Guinea=Malabo|Eritrea=Asmara|Eswatini=Mbabane|Ethiopia=Addis Ababa
Gabon=Libreville|the Gambia=Banjul|Ghana=Accra|Guinea=Conakry|Guinea-Bissau=Bissau
Ivory Coast=Yamoussoukro|Kenya=Nairobi|Lesotho=Maseru|Liberia=Monrovia|Libya=Tripoli
Madagascar=Antananarivo|Malawi=Lilongwe|Mali=Bamako|Mauritania=Nouakchott
Mauritius=Port Louis|Morocco=Rabat|Mozambique=Maputo|Namibia=Windhoek|Niger=Niamey
Nigeria=Abuja|Rwanda=Kigali|Sao Tome and Principe=Sao Tome
Senegal=Dakar|the Seychelles=Victoria|Sierra Leone=Freetown
Somalia=Mogadishu|South Africa=Pretoria|South Sudan=Juba|Sudan=Khartoum|Tanzania=Dodoma
Togo=Lome|Tunisia=Tunis|Uganda=Kampala|Zambia=Lusaka|Zimbabwe=Harare
"""
_NORTH_AMERICA = """
Antigua and Barbuda=Saint John's|the Bahamas=Nassau|Barbados=Bridgetown|Belize=Belmopan
Canada=Ottawa|Costa Rica=San Jose|Cuba=Havana|Dominica=Roseau
the Dominican Republic=Santo Domingo|El Salvador=San Salvador|Grenada=Saint George's
Guatemala=Guatemala City|Haiti=Port-au-Prince|Honduras=Tegucigalpa|Jamaica=Kingston
Mexico=Mexico City|Nicaragua=Managua|Panama=Panama City|Saint Kitts and Nevis=Basseterre
Saint Lucia=Castries|Saint Vincent and the Grenadines=Kingstown
Trinidad and Tobago=Port of Spain|the United States=Washington
"""
_SOUTH_AMERICA = """
Argentina=Buenos Aires|Bolivia=Sucre|Brazil=Brasilia|Chile=Santiago|Colombia=Bogota
Ecuador=Quito|Guyana=Georgetown|Paraguay=Asuncion|Peru=Lima|Suriname=Paramaribo
Uruguay=Montevideo|Venezuela=Caracas
"""
_OCEANIA = """
Australia=Canberra|Fiji=Suva|Kiribati=South Tarawa|the Marshall Islands=Majuro
Micronesia=Palikir|Nauru=Yaren|New Zealand=Wellington|Palau=Ngerulmud|Papua New Guinea=Port Moresby
Samoa=Apia|the Solomon Islands=Honiara|Tonga=Nuku'alofa|Tuvalu=Funafuti|Vanuatu=Port Vila
"""


def _parse(continent: str, table: str) -> list[Country]:
    pairs = (cell.split("=") for cell in table.strip().replace("\n", "|").split("|"))
    return [Country(name, capital, continent) for name, capital in pairs]


COUNTRIES: tuple[Country, ...] = tuple(
    country
    for continent, table in (
        ("Europe", _EUROPE),
        ("Asia", _ASIA),
        ("Africa", _AFRICA),
        ("North America", _NORTH_AMERICA),
        ("South America", _SOUTH_AMERICA),
        ("Oceania", _OCEANIA),
    )
    for country in _parse(continent, table)
)

# Asked about most often, so seen more often in training.
_WELL_KNOWN_NAMES = frozenset(
    """France|Germany|Italy|Spain|Portugal|Japan|China|India|Brazil|Canada|Mexico|Egypt|Kenya
    |Norway|Sweden|Denmark|Finland|Poland|Austria|Switzerland|Belgium|Ireland|Greece|Turkey
    |Russia|Ukraine|Australia|New Zealand|Argentina|Chile|Peru|Cuba|South Korea|Thailand
    |Vietnam|Indonesia|the Netherlands|the United Kingdom|the United States|Hungary|Nigeria
    |South Africa|Morocco|Iceland|Colombia|the Philippines|the Czech Republic|Israel|Iran
    """.replace("\n", "")
    .replace("    ", "")
    .split("|")
)
WELL_KNOWN: tuple[Country, ...] = tuple(c for c in COUNTRIES if c.name in _WELL_KNOWN_NAMES)
